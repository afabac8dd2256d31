"""The YAML of Figure 3.1."""

from __future__ import annotations

from pydantic import Field

from experiments.figure_files import FigureSection


class Regression(FigureSection):
    """The generated data."""

    num_records: int = Field(gt=0, description="N.")
    seed: int = Field(ge=0, description="Seed of coefficients and records.")
    prior_scale: float = Field(gt=0, description="Scale of the prior, and of the coefficients' own law.")
    noise_scale: float = Field(gt=0, description="Scale of y given x.")
    correlation: float = Field(gt=-1, lt=1, description="Correlation of the normals whose directions are the rows.")


class Promise(FigureSection):
    """Promise of private runs."""

    epsilon: float = Field(gt=0, description="ε.")
    delta: float = Field(gt=0, lt=1, description="δ, below 1/N.")
    adjacency: str = Field("replace_one", description="Definition of a neighbour.")
    clip_residual: float = Field(gt=0, description="Residual, in noise scales, from which a gradient is clipped.")


class Samples(FigureSection):
    """The runs on the right."""

    steps: int = Field(gt=0, description="Steps of each run.")
    batch_size: int = Field(gt=0, description="Expected, Poisson.")
    burn_in: float = Field(ge=0, lt=1, description="Share of the steps before the first kept draw.")
    thin: int = Field(gt=0, description="Steps from one draw to the next.")
    friction: float = Field(gt=0, le=1, description="Friction of SGHMC and SGNHT.")
    small_step: float = Field(gt=0, lt=1, description="Share of SGLD's step that the second SGLD takes.")
    repeats: int = Field(gt=0, description="Private runs.")
    plain_repeats: int = Field(gt=0, description="Runs without privacy.")
    small_repeats: int = Field(gt=0, description="Runs of the second SGLD.")


class Trajectories(FigureSection):
    """The chains on the left."""

    passes: float = Field(gt=0, description="T.")
    tail: float = Field(gt=0, lt=1, description="Share of a chain that its covariance is measured on.")
    repeats: int = Field(gt=1, description="Private chains, each a run of its own.")
    plain_repeats: int = Field(gt=1, description="Chains without privacy.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens; every method stays."""

    num_records: int = Field(gt=0, description="N.")
    steps: int = Field(gt=0, description="On the right.")
    batch_size: int = Field(gt=0, description="On the right.")
    repeats: int = Field(gt=0, description="On the right.")
    trajectories: int = Field(gt=1, description="Chains on the left, of each method.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    regression: Regression = Field(description="The data.")
    privacy: Promise = Field(description="Promise of private runs.")
    samples: Samples = Field(description="Right.")
    trajectories: Trajectories = Field(description="Left.")
    noise_seed: int | None = Field(None, description="None: secret noise.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``."""
        body = self.quick
        samples = {
            "steps": body.steps,
            "batch_size": body.batch_size,
            "repeats": body.repeats,
            "plain_repeats": 1,
            "small_repeats": 1,
        }
        return self.model_copy(
            update={
                "regression": self.regression.model_copy(update={"num_records": body.num_records}),
                "samples": self.samples.model_copy(update=samples),
                "trajectories": self.trajectories.model_copy(
                    update={"repeats": body.trajectories, "plain_repeats": body.trajectories}
                ),
            }
        )

    @property
    def clip_norm(self) -> float:
        """C, from public constants: ‖x‖ = 1, and a residual of ``clip_residual`` noise scales."""
        return self.privacy.clip_residual / self.regression.noise_scale
