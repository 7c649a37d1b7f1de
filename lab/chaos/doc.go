// Package chaos searches for faults that break connections. It builds worlds, which are
// networks with a collective and traffic. It injects a random sequence of faults into each,
// lying members among them. Then it checks what dcol promises: no connection breaks that
// plain TCP beside it keeps, every byte is right, no packet leaves a waypoint without a
// right to, there are two paths again soon after the last fault, and nothing leaks.
//
//	plan.Generate(seed) -> world -> faults -> calm -> Observations -> judge -> Verdict
//
// Package plan decides everything beforehand, twin makes the traffic, attack implements
// lying members and strangers. A campaign runs sequences side by side, stores each result,
// and shrinks the plans that failed.
package chaos
