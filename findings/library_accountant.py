"""The lower bound itself is taken for an accountant: a guarantee below the true epsilon."""
import dpmcmc, numpy as np
from dpmcmc.privacy import account
kw = dict(steps=100, sampling=dpmcmc.Poisson(10), num_records=100, delta=1e-5)
print("pld", account(0.7, **kw).epsilon)
print("lower", account(0.7, accountant="dpmcmc.privacy.accounting.lower_bound:epsilon", **kw))
