// Package experiment turns scenarios into running networks and measures on
// them: it builds the hosts and links, starts agents, servers and workloads, and
// returns a report.Result, or of a suite a report.SuiteResult. It also is the shell that lets a person look round
// such a network. Commands, benchmarks and the demo import it.
//
// An experiment is run.go (the plan), ledger.go (what was done before), crew.go and
// governor.go (how many runs at a time), reference.go (a flow that tells what that
// does to them), progress.go, and result.go (what was found). Each run is on a network
// of its own and goes through the files in this order: lab.go (the network), agent.go
// (the members), tunnels.go (their tunnels), workload.go with iperf.go, web.go and
// command.go (the traffic), sample.go (what the kernel counts meanwhile),
// timeline.go (what happens meanwhile), fidelity.go (whether it counts).
package experiment
