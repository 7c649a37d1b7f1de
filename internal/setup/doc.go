// Package setup makes a host a member of a collective: by founding one, or with the line of an invitation. It
// writes the identity, what the coordinators said and, last, the configuration, so that a host either is a
// member or can be made one by the same command again. Then it has the agent run, and says in words what works.
//
//	dcol init    Found   found.go     keys of the collective, first member, configuration
//	dcol join    Join    join.go      key made here, enrolment, configuration
//	both         Start   start.go     by systemd, or by itself
//	             Test    selftest.go  what the agent and the coordinators say of it
//
// It imports api, config, enrol, membership, coordinator and collective of ours; only the commands import it.
package setup
