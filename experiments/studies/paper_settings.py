"""The paper's training set-ups, from its tables; what it leaves open is named here.

Not stated there: sequence length of the dense runs (2,048 is SmolLM2's, and gives the batch of
2^21 tokens with 1,024 sequences), weight decay, clipping, initialisation and seeds (`tst_study`'s
defaults).
"""

from experiments.corpora import HubText
from experiments.studies.setting import Setting
from tst_study.config.schema import Parallel

DCLM = HubText("dclm-llama3", "hf://mlfoundations/dclm-baseline-1.0", "meta-llama/Meta-Llama-3-8B")
VALIDATION_TOKENS = 8_388_608
WARMUP_STEPS = 2_000


def _dense(model: str, steps: int, learning_rate: float, micro_batch: int) -> Setting:
    return Setting(
        model=model,
        corpora=(DCLM,),
        sequences=1024,
        sequence_length=2048,
        steps=steps,
        warmup_steps=WARMUP_STEPS,
        learning_rate=learning_rate,
        dtype="bfloat16",
        micro_batch=micro_batch,
        parallel=Parallel(optimizer="distributed", overlap_gradients=True, overlap_weights=True),
        validation_tokens=VALIDATION_TOKENS,
    )


DENSE_270M = _dense("270m", 20_000, 2e-3, micro_batch=16)
DENSE_270M_LONG = DENSE_270M.with_steps(100_000)
DENSE_600M = _dense("600m", 20_000, 1e-3, micro_batch=8)
DENSE_3B = _dense("3b", 20_000, 2e-4, micro_batch=4)
EQUAL_LOSS_STEPS, EQUAL_DATA_STEPS = 36_000, 50_000
"""Figure 3: baselines of 3B that cost as much as they must for the same loss, or read as much."""
