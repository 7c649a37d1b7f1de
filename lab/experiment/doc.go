// Package experiment builds networks from scenarios and measures on them. It starts hosts, links, agents,
// servers and workloads, and returns a report.Result, or a report.SuiteResult for a suite. It also provides
// the interactive shell on such a network. Commands, benchmarks and the demo import it.
//
// An experiment is run.go (the plan), with lab/runner (which runs are made, how many at a time, and the record
// of them), progress.go, and result.go. Each run has its own network and uses these files in this order: lab.go
// and network.go (the network), agents.go (the members), tunnels.go (their tunnels), workload.go with iperf.go,
// web.go and command.go (the traffic), sample.go (kernel counters), timeline.go (events).
package experiment
