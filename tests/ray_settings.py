"""Ray as the tests want it: quiet, offline and small."""

from __future__ import annotations

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray will have it anyway; without it, it warns
    "RAY_num_prestart_python_workers": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # on a busy machine they would hardly run at all
    "OMP_NUM_THREADS": "1",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills workers where other programs have filled the memory
}
