"""Metrics of binding conditions of devices, with the names and labels of kube-scheduler 1.37."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from phalanx.engine.state.records import PodRecord
from phalanx.serve.metrics.histograms import Histograms, exponential
from phalanx.serve.scheduler import SchedulerService


class DeviceMetrics:
    def __init__(self, service: SchedulerService, registry: CollectorRegistry) -> None:
        self._service = service
        labels = ["profile", "driver", "status"]
        self._allocations = Counter(
            "scheduler_dra_bindingconditions_allocations_total",
            "Attempts that used devices with binding conditions, once for each driver.",
            labels,
            registry=registry,
        )
        self._waits = Histograms(
            "scheduler_dra_bindingconditions_wait_duration_seconds",
            "How long pods waited before their Bind for binding conditions of devices.",
            labels,
            exponential(0.1, 2, 14),
            registry,
        )
        service.on_step.append(self._stepped)

    def _stepped(self, _: float) -> None:
        waits = self._service.engine.scheduler.binding.pre_bind_waits
        while waits:
            seconds, status, record = waits.popleft()
            for driver in self._drivers(record):
                self._allocations.labels(record.scheduler_name, driver, status).inc()
                self._waits.observe(seconds, (record.scheduler_name, driver, status))

    def _drivers(self, record: PodRecord) -> list[str]:
        """Return the drivers of the pod's devices that have binding conditions."""
        devices, found = self._service.engine.indexes.devices, set[str]()
        for key in (*record.claims, devices.made_for(record.uid)):
            claim = devices.claim(key)
            allocation = claim.status.allocation if claim is not None else None
            for result in allocation.devices.results if allocation is not None else ():
                if result.binding_conditions:
                    found.add(result.driver)
        return sorted(found)
