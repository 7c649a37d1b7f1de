package bench

import (
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// crowdCosts is a coordinator's measured cost for a number of members.
type crowdCosts struct {
	members int // connected during the measurement

	memoryBase, memoryEach float64       // bytes: without members, and for each that is connected
	idleCPU                float64       // seconds of a core each second, for each member that is connected
	idleBytes              float64       // a second to each, when nothing happens
	joinCPU, renewCPU      time.Duration // of one
	deliverCPU             time.Duration // of one record to one member
	deliverBytes           float64       // of one record to one member
	recordBytes            float64       // of one record in the directory
	// The time from an expulsion until the first member knows of it, and from then until 99 % do.
	expelFirst, expelSpread time.Duration
}

// crowdProjection is the estimate for another number of members.
type crowdProjection struct {
	memory       float64 // bytes
	cores        float64 // in use, on average
	feedCores    float64 // part of these, for sending records
	outbound     float64 // bit/s, on average
	memberDay    float64 // bytes sent to a member in a day
	firstCopy    float64 // bytes
	joinAll      time.Duration
	expel        time.Duration
	changesDaily float64 // of records, each to all
}

// renewEvery returns the average time between renewals of a member's certificate, and so of its record.
func renewEvery() time.Duration {
	var begin time.Time
	return collective.RenewAt(begin, begin.Add(collective.MemberValidity), 0.5).Sub(begin)
}

// at estimates the cost of one coordinator with a number of members. The cost of changes grows with the square of that
// number, because each member's changes are sent to all members. All other costs grow with the number.
func (c crowdCosts) at(members int, renewal time.Duration, cores float64) crowdProjection {
	n := float64(members)
	const day = 24 * time.Hour
	changes := n * day.Seconds() / renewal.Seconds() // a day
	p := crowdProjection{
		memory:       c.memoryBase + n*c.memoryEach,
		feedCores:    changes * n * c.deliverCPU.Seconds() / day.Seconds(),
		memberDay:    c.idleBytes*day.Seconds() + changes*c.deliverBytes,
		firstCopy:    n * c.recordBytes,
		joinAll:      time.Duration(n * float64(c.joinCPU) / cores),
		expel:        c.expelFirst + time.Duration(float64(c.expelSpread)*n/float64(c.members)),
		changesDaily: changes,
	}
	p.cores = p.feedCores + n*c.idleCPU + n*c.renewCPU.Seconds()/renewal.Seconds()
	p.outbound = n * p.memberDay * 8 / day.Seconds()
	return p
}

// assumptions describes what a projection assumes.
func assumptions(renewal time.Duration, cores float64) string {
	return strings.Join([]string{
		fmt.Sprintf("every member is connected and renews certificate and record once in %v (RenewAt of %v, the middle)", renewal, collective.MemberValidity),
		"a record goes to every member each time, with its certificates",
		"memory, processor time and bytes for each member are those measured",
		fmt.Sprintf("joins take all of %g cores and nothing else does", cores),
		"an expulsion is decided and signed in the same time, and told in as much more time as there are more members; what the server then spends on looking at each connection's JWT comes later and is not in it",
		"one coordinator takes 32,768 connections, so that more members need several servers (bus-servers), which share connections and the work of telling",
	}, "; ")
}
