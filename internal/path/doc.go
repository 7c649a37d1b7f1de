// Package path is the path manager as pure decisions: it is told what happened
// and answers what to do. It keeps the state of every MPTCP connection and of
// every detour on offer, reads no clock, touches no kernel and starts no
// goroutine, so the same code runs in the agent, in tests with virtual time and
// in a simulator.
//
// One owner calls Manager.Handle with an Event and the time, carries out the
// Actions it gets back, and calls Handle again with Tick at Manager.Next.
// What every policy needs (address ids, joins that hang, backoff, whether a path
// lets in-band SYNs through, the TLS handshake kept on the direct path, the
// client's own address changing) is the Manager's; which detours a connection
// gets is the Policy's: one file a policy.
//
// The package imports nothing of dcol's and nothing of the kernel's; anything
// may import it.
package path
