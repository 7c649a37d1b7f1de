// Package relay is the process that relays converted connections, on the converter's host and on clients' hosts. It is
// not part of the agent, so that connections continue when the agent ends.
//
// The agent sends a State over the control socket whenever something changes, and gets a Status. The relay keeps a part
// for each way in which connections come in: a listener with an engine, which relays what a front decides (packages
// engine, client and server).
//
//	relay.go      Run: the process; parts; the use of a State
//	state.go      State and Status
//	control.go    how the agent and the relay speak on the control socket
//	kill.go       the end of a relay that does not answer
//	use.go        leading connections of this host's programs and of a LAN to converters
//	captured.go   ... those of programs that do not ask (package capture)
//	incoming.go   connections that are taken for members that listen, or brought to this host
//	listeners.go  the listening sockets
//	handover.go   a new version of the process takes over the listeners; the old one relays its open connections
//	rights.go     the capabilities that the process keeps
//
// Without an agent the process continues with the last State. Members' cookies expire, so that it does not serve members
// for long. It ends when it has had neither an agent nor a connection for a while.
package relay
