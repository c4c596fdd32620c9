// Manifests to start from.

import { GPU, TOPOLOGY_KEYS } from "./constants.js";

const [BLOCK, RACK] = TOPOLOGY_KEYS.slice(-2);

const container = (gpus) => `          containers:
          - name: worker
            image: example/train:1
            resources: {limits: {${GPU}: "${gpus}"}}
`;

export const URGENT = "Urgent Job: which pods would it preempt?";

export const EXAMPLES = [
  {
    name: "Job: 8 whole nodes in one rack",
    text: `apiVersion: batch/v1
kind: Job
metadata: {name: training}
spec:
  parallelism: 8
  completions: 8
  scheduling:
    schedulingPolicy: {gang: {}}
    schedulingConstraints: {topology: [{key: ${RACK}}]}
  template:
    spec:
      restartPolicy: Never
${container(8).replace(/^ {4}/gm, "")}`,
  },
  {
    name: "JobSet: driver and workers as one gang",
    text: `apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: pretraining}
spec:
  scheduling:
    schedulingPolicy: {gang: {}}
    schedulingConstraints: {topology: [{key: ${BLOCK}}]}
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 4
        completions: 4
        template:
          spec:
            restartPolicy: Never
${container(8).replace(/^/gm, "  ").replace(/ +$/, "")}`,
  },
  {
    name: "LeaderWorkerSet: two replicas of four",
    text: `apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: serving}
spec:
  replicas: 2
  scheduling:
    schedulingConstraints: {topology: [{key: ${RACK}}]}
  leaderWorkerTemplate:
    size: 4
    workerTemplate:
      spec:
        containers:
        - name: server
          image: example/serve:1
          resources: {limits: {${GPU}: "4"}}
`,
  },
  {
    name: "PodGroup by hand: three pods, minimum two",
    text: `apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: by-hand}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  schedulingConstraints: {topology: [{key: ${RACK}}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: by-hand}
spec:
  replicas: 3
  selector: {matchLabels: {app: by-hand}}
  template:
    metadata: {labels: {app: by-hand}}
    spec:
      schedulingGroup: {podGroupName: by-hand}
      containers:
      - name: main
        image: example/train:1
        resources: {requests: {cpu: "4"}}
`,
  },
  {
    name: URGENT, // the same as examples/urgent.yaml
    text: `apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: batch/v1
kind: Job
metadata: {name: incident}
spec:
  parallelism: 8
  completions: 8
  completionMode: Indexed
  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}
  scheduling:
    schedulingPolicy: {gang: {}}
    schedulingConstraints: {topology: [{key: ${RACK}}]}
  template:
    spec:
      priorityClassName: urgent
      restartPolicy: Never
      containers:
      - {name: main, image: example/incident:1, resources: {limits: {${GPU}: "8"}}}
`,
  },
];
