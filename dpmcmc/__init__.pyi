from . import audit as audit
from . import data as data
from . import diagnostics as diagnostics
from . import inference as inference
from . import mechanisms as mechanisms
from . import privacy as privacy
from . import samplers as samplers
from . import targets as targets
from .engine import processes as processes
from .engine.life import sample as sample
from .engine.mesh import mesh as mesh
from .engine.result import DivergedError as DivergedError
from .engine.result import Result as Result
from .engine.sweep import sample_all as sample_all
from .planning.making import plan as plan
from .planning.plan import Plan as Plan
from .privacy.accounting.guarantee import Guarantee as Guarantee
from .privacy.accounting.promise import Privacy as Privacy
from .privacy.accounting.sampling import FixedSize as FixedSize
from .privacy.accounting.sampling import Full as Full
from .privacy.accounting.sampling import Poisson as Poisson
from .privacy.query.randomness import SecretKey as SecretKey
from .samplers import SGFS as SGFS
from .samplers import SGHMC as SGHMC
from .samplers import SGLD as SGLD
from .samplers import SGNHT as SGNHT

__version__: str
