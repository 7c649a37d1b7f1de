// Package path is the path manager. It decides which detours the MPTCP connections of this host use, and which of their
// subflows carry data. Its decisions are pure: events go in, actions come out. It reads no clock, makes no system calls
// and starts no goroutine, so the same code runs in the agent, in tests with virtual time and in a simulator.
//
// # From an event to an action
//
//  1. The caller passes an Event and the time to Manager.Handle. Handle passes it to the owner of the state that it
//     changes, such as hostAddrs, offers or conn.
//  2. If the event has close samples of a connection, weighing.weigh decides which of its subflows carry and which of
//     its detours are exchanged. trying.tryOut, which it calls, decides which are tried out or omitted.
//  3. Manager.step brings each affected connection up to date: it judges ended subflows, ends leaving ones and sends
//     what the peer must know.
//  4. The last part of step, Manager.open, asks the connection's Policy which detours to open. The Policy sees a View:
//     the subflows in use, and the detours that are usable or rest.
//  5. Handle returns the Actions. The caller carries them out, and calls Handle with a Tick at Manager.Next.
//
// An owner of state never calls the Manager. It returns what follows from a change. A turn is one connection at the
// time of an event. Its methods decide what needs no detours and no other connections. A weighing is a turn that can
// look at these, too.
//
// # Words
//
//   - connection: an MPTCP connection of a program on this host. It consists of subflows.
//   - path: the way of a subflow's packets. The direct path passes no waypoint.
//   - waypoint: another member's host, which forwards traffic to servers.
//   - detour: a route to servers through a waypoint, by a mechanism (Kind). It is on offer until it is withdrawn. It
//     rests while something speaks against using it.
//   - backup: a subflow on which the peer sends new data only if no other subflow works (MP_PRIO).
//   - carry: an established subflow carries if it is not a backup.
//   - stand by: a subflow stands by if it is a backup although it works. Either the Policy wants that, or the subflow
//     is set aside, for a reason (asideCause), and carries again when the reason has gone.
//   - place: one of the few subflows that a server accepts.
//   - exchange: to take a detour through another waypoint in place of one in use. To flee is to leave a detour at once,
//     because its rate collapsed.
//   - try out: to give a waypoint the place of another for a short time, to measure it. A bulk connection first screens
//     the waypoints that were not measured, later challenges one detour at a time. To yield is to give the place.
//   - omit: to set a detour aside for a moment, to compare what the connections get without it.
//   - burden: a detour that holds up its connection for more than it is worth.
//   - leaving: a subflow is leaving if it ends as soon as its connection has another.
//   - departure: the record of a path that a connection left, by the end of a subflow or because it became a backup.
//   - messages, bulk: kinds of traffic. Messages wait for round trips, bulk traffic for bandwidth.
//   - network of servers: a block of addresses to which routes are usually the same (prefixOf).
//   - trail: a waypoint, or the direct path, towards a network of servers. Measurements are remembered by trail.
//   - line: this host's own access to the Internet, which all paths share.
//
// # Where to find what
//
// What comes in, what goes out, and what is known of connections?
//
//	event.go action.go manager.go      events, actions, and the functions that handle them
//	kernel.go                          the kernel's events about connections and subflows
//	conn.go subflow.go table.go        one connection, its subflows, all connections
//	step.go                            one connection's update; turn
//	addrs.go                           this host's addresses
//	reconfigure.go steer.go spare.go   the operator's settings and wishes
//	tally.go settle.go                 what subflows carried, to the last byte
//	snapshot.go note.go flow.go        the state for display
//	departure.go cause.go              which paths a connection left; why a subflow is used as it is
//
// Which detours are on offer, and which rest?
//
//	detour.go vocabulary.go            detours, their kinds and offers
//	rest.go                            which detours a connection does not use now, and until when
//	retry.go trial.go suspension.go    ... after failures, while in-band SYNs are blocked, after harm
//	blackhole.go                       ... after nothing arrived from servers in several networks
//	spend.go quota.go limit.go         ... because of budgets (package budget), quotas and rate limits
//	loaded.go                          ... because their waypoints are loaded
//
// Which detours does a connection take, and why?
//
//	open.go reason.go                  the View, the Plan carried out, the reasons
//	package policy                     the policies, and the reasons for their choices
//	rule.go growth.go threshold.go     which policy a connection follows, and when it begins
//	prospect.go bulk.go together.go    what a connection may expect of a detour
//	places.go                          how many subflows a server accepts
//	explain.go                         the same for a new connection, to be shown
//
// What was measured?
//
//	sense.go                           what samples show; package measure makes the estimates
//	closely.go                         which connections are sampled often enough for that
//	history.go memory.go               measurements by trail, and how they outlive the Manager
//	hearsay.go                         other members' measurements (package claim)
//	share.go                           whether two paths share a bottleneck
//	line.go sessions.go                whether this host's line is the bottleneck
//
// Which detours are replaced by better ones?
//
//	exchange.go flee.go                by one that gives clearly more, or at once after a collapse
//	tryout.go challenge.go invite.go   by one that is tried out
//	screen.go extra.go                 the first phase of that, if possible beside the detours in use
//	explore.go                         what exploring may cost
//	refresh.go leave.go                by a new subflow; waypoints that are not used any more
//	surplus.go                         by none: the connection has more subflows than its policy allows
//
// Which subflows carry?
//
//	weigh.go                           the decision
//	messages.go                        the path with the shortest wait, for messages
//	far.go                             no first messages over detours that are much longer
//	lossy.go                           paths that lose too much
//	burden.go                          detours that hold up the others
//	omit.go                            detours that add nothing
//	wake.go                            ... carry again
//	behindline.go addednothing.go      ... from the beginning, as earlier connections showed
//	without.go                         what carries once a subflow stops
//	stall.go                           subflows that stand by when the others stall
//	bound.go                           bulk traffic that delays messages
//	arrange.go                         what the policy wants
//	priority.go                        how the peer learns of it
//
// When does a subflow or a connection end?
//
//	measure.go silence.go vanish.go    no progress, nothing arrives, gone without an event
//	dead.go                            messages are stuck on it
//	direct.go                          the direct path does not work, though its subflows stay
//	judge.go                           what the end says about a detour or a server
//	removeaddr.go                      how the peer learns of an end that it cannot notice
//	inactivity.go                      connections that are left to end
//
// What happens to connections that this host accepted?
//
//	announce.go refuse.go              announcing addresses, refusing subflows
package path
