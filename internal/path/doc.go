// Package path implements the path manager as pure decisions: events go in, actions come out. It
// keeps the state of every MPTCP connection and of every detour on offer. It reads no clock, makes
// no system calls and starts no goroutine, so the same code runs in the agent, in tests with
// virtual time and in a simulator.
//
// A single owner calls Manager.Handle with an Event and the time, carries out the Actions it
// returns, and calls Handle again with Tick at Manager.Next. The Manager handles what every policy
// needs: address ids, joins without an answer, backoff, whether a path lets in-band SYNs through,
// keeping TLS handshakes on the direct path, and changes of the client's address. A Policy decides
// which detours a connection gets; each policy has its own file.
//
// An event changes the state of its owners. Then step brings each connection concerned up to date.
// An owner never calls the Manager: it returns what follows from the change.
//
//	event.go action.go manager.go    what goes in, what comes out, which function handles what
//	kernel.go                        a connection's and a subflow's life, as the kernel reports it
//	conn.go subflow.go table.go      one connection, its subflows, all connections
//	step.go                          step; turn, with which one connection decides for itself
//	addrs.go                         this host's addresses
//
//	detour.go kind.go                detours, and which are on offer
//	open.go policy*.go reason.go     which detours a connection takes now, and why
//	candidate.go explain.go          why a new connection would take a detour or not
//	rule.go arrange.go quota.go      which policy a connection follows, which of its subflows carry
//	growth.go threshold.go           whether a connection has the traffic that its policy waits for
//	inactivity.go                    when a connection without subflows is left to end
//	refresh.go refuse.go             when subflows are replaced, which are refused
//	rest.go                          which detours it does not take now, and until when:
//	retry.go trial.go suspension.go       after failures, while in-band SYNs are blocked, after harm
//	loaded.go                        which waypoints are loaded, and how connections leave those
//	exchange.go                      which detours in use are exchanged for better ones
//	tryout.go challenge.go           which waypoints a bulk connection tries in their places
//	invite.go                        which it tries because they say what they give
//	omit.go                          which detours stand by, because a bulk connection gets as much without them
//	line.go sessions.go              whether this host's line is the bottleneck, as sessions with waypoints show
//	behindline.go                    which detours begin as backups, because it was
//	flee.go                          which are left at once, because they turned bad in the middle of traffic
//	places.go                        how many subflows a server accepts
//
//	history.go prospect.go bulk.go   measurements of detours, and the expectations they give
//	together.go                      what this host's bulk connections get through a waypoint, all together
//	explore.go                       what exploring may cost
//	hearsay.go                       what other members measured (package claim)
//	share.go                         whether a detour shares its bottleneck with another path
//	memory.go                        how the next Manager takes them over
//
//	sense.go                         what samples show; package measure has the estimates
//	weigh.go                         which subflows carry a connection's data, and which are set aside
//	lossy.go                         which are set aside because they lose packets
//	bound.go                         when bulk traffic gives way to messages on the same path
//	stall.go                         when those set aside carry again because the others stall
//	priority.go                      how the server learns of that (MP_PRIO)
//	measure.go silence.go vanish.go  when a detour in use is given up: it makes no progress, nothing
//	                                 arrives, it ended without an event
//	spend.go                         budgets of bytes through waypoints (package budget)
//	leave.go                         how detours end whose waypoint is not to be used any more
//	judge.go                         what the end of a subflow says about its detour or server
//	removeaddr.go                    how the server learns of ends that it cannot notice
//	tally.go settle.go               what subflows carried, to the last byte
//	flow.go snapshot.go              the state, for display
package path
