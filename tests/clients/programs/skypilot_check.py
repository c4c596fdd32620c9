"""SkyPilot's check of Kubernetes, and the GPUs that it sees. KUBECONFIG is set."""

from sky import check, core

found = check.check_capabilities(quiet=True, clouds=["kubernetes"])
((cloud, capabilities),) = next(iter(found.values())).items()
assert cloud == "Kubernetes" and [each.value for each in capabilities] == ["compute"], found
((context, gpus),) = core.realtime_kubernetes_gpu_availability()
assert [(gpu.capacity, gpu.available, max(gpu.counts)) for gpu in gpus] == [(24, 24, 8)], gpus
print(context, gpus)
