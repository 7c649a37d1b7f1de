// Package experiment builds networks from scenarios and measures on them. It starts hosts, links, agents,
// servers and workloads, and returns a report.Result, or a report.SuiteResult for a suite. It also provides
// the interactive shell on such a network. Commands, benchmarks and the demo import it.
//
// run.go plans an experiment. Package runner executes its runs and records them, progress.go shows the progress, and
// result.go sums up. Each run has its own network and uses these files in this order: lab.go and network.go (the
// network), agents.go and agent_config.go (the members), execute.go (the order of a run), workload.go with iperf.go,
// web.go, turns.go and command.go (the traffic), sample.go, host_sockets.go and closed_sockets.go (kernel counters),
// timeline.go (events). shell.go has the shell.
package experiment
