"""Figures of a run.

``figures``     traces, calibration, ε against δ
``per_record``  what a run cost each record; confidential
"""
