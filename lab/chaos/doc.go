// Package chaos searches for faults that break connections. It builds worlds, and injects a random sequence of faults into
// each. Then it checks dcol's promises:
//
//   - A connection survives if plain TCP beside it survives, and every byte is right.
//   - No forbidden packet leaves a waypoint.
//   - Soon after the last fault, each connection has two paths again.
//   - Nothing leaks.
//
// A sequence passes these stages:
//
//	plan.Generate(seed) -> world -> faults -> calm -> Observations -> judge -> Verdict
//
// Package plan decides everything beforehand, twin makes the traffic, and attack implements lying members and strangers. A
// campaign runs sequences side by side, stores each result, and shrinks the plans that failed.
//
// # Words
//
//   - world: a network with a collective and traffic.
//   - twin: the plain TCP connection beside an MPTCP connection, with the same traffic.
//   - strike: a fault as it happened. It counts if the thing that it struck had carried bytes just before.
//   - finding: something that dcol did wrong. An error is a failure of the lab, and says nothing about dcol.
//   - exempt, excused: a connection that need not have two paths, for a known reason.
//   - held: a connection that a fault of an end's kernel hung or damaged. It is not a finding.
//
// # Where to find what
//
//	campaign.go replay.go result.go         many sequences, one again, the stored result
//	sequence.go                             one sequence, from the world to its observations
//	world.go agents.go                      the network and its agents
//	inject.go inject_network.go             faults of processes, and of links and kernels
//	inject_attack.go                        what lying members and strangers do
//	distrust.go                             the one waypoint that faults may make dcol avoid for long
//	monitor.go watch.go                     what carries bytes; packets that leave waypoints
//	paths.go recover.go                     which connections lack a path, and whether two paths work
//	stall.go finish.go                      connections that a kernel holds up; the end of all traffic
//	measure.go memory.go                    what hosts hold; the machine's memory for sockets
//	observations.go judge.go                all that was observed, and the verdict
//	failures.go explain.go                  failures of dcol's processes, and state for an investigation
package chaos
