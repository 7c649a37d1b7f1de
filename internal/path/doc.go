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
package path
