// Package setup makes a host a member of a collective, by founding one or by accepting an
// invitation. It writes the identity, the coordinators' data and, last, the configuration. So after
// an interruption the host is either a member, or the same command can be run again. Then it starts
// the agent and reports what works.
//
//	dcol init    Found   found.go     keys of the collective, first member, configuration
//	dcol join    Join    join.go      key made here, enrolment, configuration
//	both         Start   start.go     by systemd, or by itself
//	             Test    selftest.go  the state according to agent and coordinators
//	the unit     HandOver handover.go root's files for the agent's user
package setup
