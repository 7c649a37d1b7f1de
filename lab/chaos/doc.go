// Package chaos looks for what breaks connections. It builds worlds, which are
// networks with a collective and traffic; strikes each with a random sequence
// of faults, lying members among them; and checks what the product promises: no
// connection breaks that plain TCP beside it keeps, every byte is right, no
// packet leaves a waypoint without a right, two paths are there again soon
// after the last fault, and nothing grows.
//
//	plan.Generate(seed) -> world -> faults -> calm -> Observations -> judge -> Verdict
//
// Package plan has what is decided beforehand, twin the traffic, attack what
// lying members and strangers do. A campaign runs sequences side by side,
// stores each result, and shrinks what failed. Part of the lab.
package chaos
