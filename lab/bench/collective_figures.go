package bench

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/detour-collective/dcol/lab/crowd"
	"github.com/detour-collective/dcol/lab/stats"
)

// projected is the number of members for which the costs are computed from those of one member.
const projected = 100_000

// figures returns the measurements of the steps that were completed.
func (r *crowdRun) figures() (found []Measurement) {
	if r == nil {
		return nil
	}
	for _, part := range []struct {
		needs   string
		figures func() []Measurement
	}{
		{"join", r.joinFigures}, {"connect", r.connectFigures}, {"late", r.lateFigures}, {"change", r.changeFigures},
		{"renew", r.renewFigures}, {"expel", r.expelFigures}, {"look", r.lookFigures}, {"look", r.paperFigures},
	} {
		if slices.Contains(r.done, part.needs) {
			found = append(found, part.figures()...)
		}
	}
	return found
}

func crowdName(what string) string { return "collective: " + what }

// each returns the coordinator's processor time for one operation of a phase.
func (p phase) each() time.Duration { return p.cpu / time.Duration(max(len(p.Millis), 1)) }

func (p phase) rate() float64 { return float64(len(p.Millis)) / p.Seconds }

func (r *crowdRun) joinFigures() []Measurement {
	joined := once(crowdName("joins"), "members/s", r.join.rate())
	joined.Note = fmt.Sprintf("%d members, %d at a time: key, HTTPS with an invitation, certificate, bus, record stored; half take %.0f ms; the coordinator spends %.2f ms of processor time on each. Each leaves the bus then. Load average before: %s",
		len(r.join.Millis), r.plan.parallel, stats.Median(r.join.Millis), stats.Milliseconds(r.join.each()), r.load)
	return []Measurement{joined, percentile(crowdName("a join, 99th percentile"), r.join.Millis, 0.99)}
}

func (r *crowdRun) connectFigures() []Measurement {
	connected := once(crowdName("connections to the bus"), "members/s", r.connect.rate())
	connected.Note = fmt.Sprintf("all those at once, %d at a time; the coordinator spends %.2f ms on each", r.plan.parallel, stats.Milliseconds(r.connect.each()))
	return []Measurement{connected}
}

// lateFigures returns the figures from the time when all members are connected.
func (r *crowdRun) lateFigures() []Measurement {
	late := once(crowdName("joins while all others listen"), "members/s", r.late.rate())
	late.Note = fmt.Sprintf("the last %d of %d: each record goes to all; the coordinator spends %.1f ms on each, and has %.0f MiB resident at most",
		r.plan.late, r.plan.members, stats.Milliseconds(r.late.each()), float64(r.lateHighest)/(1<<20))
	n := float64(r.plan.members)
	m := once(crowdName("coordinator's memory for each member"), "KiB", float64(r.full.resident-r.empty.resident)/n/(1<<10))
	m.Note = fmt.Sprintf("resident, with %d connected: %.0f MiB, without members %.0f MiB; of the heap and stacks %.1f KiB each, %.1f KiB of them for records, names and certificates of who is not connected",
		r.plan.members, float64(r.full.resident)/(1<<20), float64(r.empty.resident)/(1<<20),
		float64(r.full.heap-r.empty.heap)/n/(1<<10), float64(r.registered.heap-r.empty.heap)/float64(r.plan.members-r.plan.late)/(1<<10))
	idle := once(crowdName("coordinator's processor use, nothing happens"), "cores", r.idle.cpu.Seconds()/r.idle.took.Seconds())
	idle.Note = fmt.Sprintf("over %v with %d connected, all of them waypoints that are being checked for the first time; %.1f bytes a second to each", r.plan.idle, r.plan.members-r.plan.late, r.idleBytes())
	return []Measurement{late, m, idle}
}

func (r *crowdRun) changeFigures() []Measurement {
	var p99 []float64
	missed := 0
	for _, s := range r.changes {
		p99, missed = append(p99, s.P99), missed+s.Missed
	}
	c := r.costs()
	told := of(crowdName("a changed record reaches all, 99th percentile"), "ms", p99)
	told.Note = fmt.Sprintf("from before it is sent to the coordinator, which gathers changes for a quarter of a second; %.0f bytes on the wire and %.1f µs of the coordinator's time for each member; %d times not within %v",
		c.deliverBytes, c.deliverCPU.Seconds()*1e6, missed, crowd.HeardWithin)
	return []Measurement{told}
}

func (r *crowdRun) renewFigures() []Measurement {
	renewed := once(crowdName("renewals"), "members/s", r.renew.rate())
	renewed.Note = fmt.Sprintf("%d members' certificates; the coordinator spends %.2f ms on each", len(r.renew.Millis), stats.Milliseconds(r.renew.each()))
	return []Measurement{renewed}
}

// lookFigures describes how many members received the changes in the end.
func (r *crowdRun) lookFigures() []Measurement {
	lacking := once(crowdName("members who lack a change in the end"), "members", float64(r.members.Behind))
	lacking.Note = fmt.Sprintf("of %d connected, who were told %d changes; %d gaps that were noticed, %d messages dropped, %d connections made in all; the coordinator was too busy for %d messages, and %d questions had to be asked again",
		r.members.Connected, r.members.Changes, r.members.Gaps, r.members.Dropped, r.members.Connects, r.hub.Busy, r.members.Retries)
	refused := 0
	for _, c := range r.members.Copies {
		refused += c.Refused
	}
	copies := once(crowdName("whole copies, every record verified"), "members", float64(len(r.members.Copies)))
	copies.Note = fmt.Sprintf("of a sample of %d, each with %d records; %d records were refused", r.plan.sample, r.hub.Members, refused)
	return []Measurement{
		lacking.target("none", r.members.Behind == 0),
		copies.target("the whole sample", len(r.members.Copies) == r.plan.sample && refused == 0),
	}
}

func (r *crowdRun) expelFigures() []Measurement {
	var p99, last, verified, cut []float64
	missed := 0
	for _, e := range r.reached {
		p99, last = append(p99, e.P99), append(last, e.Max)
		verified, cut = append(verified, e.Verified), append(cut, e.Cut)
		missed += e.Missed
	}
	m := of(crowdName("an expulsion reaches all, 99th percentile"), "ms", p99)
	m.Value = slices.Max(p99)
	m.Note = fmt.Sprintf("the slowest of %d, from the order to the revocation list at the member; the last member of any has it after %.0f ms; %d times not within %v. Each member expelled asked for a certificate and was refused",
		len(p99), slices.Max(last), missed, crowd.HeardWithin)
	taken := of(crowdName("an expulsion is verified and in force"), "ms", verified)
	taken.Note = fmt.Sprintf("at the last of the sample of %d", r.plan.sample)
	return []Measurement{
		m.target("< 2 s", missed == 0 && m.Value < stats.Milliseconds(expelWithin)),
		taken,
		of(crowdName("the member expelled is off the bus"), "ms", cut),
	}
}

// idleBytes returns the bytes a second that each member receives when nothing happens.
func (r *crowdRun) idleBytes() float64 {
	return float64(r.idle.sent) / r.idle.took.Seconds() / float64(r.plan.members-r.plan.late)
}

// costs returns the measured costs of one member.
func (r *crowdRun) costs() crowdCosts {
	n := float64(r.plan.members)
	c := crowdCosts{
		members: r.plan.members, memoryBase: float64(r.empty.resident), memoryEach: float64(r.full.resident-r.empty.resident) / n,
		idleCPU: r.idle.cpu.Seconds() / r.idle.took.Seconds() / float64(r.plan.members-r.plan.late), idleBytes: r.idleBytes(),
		joinCPU: r.join.each(), renewCPU: r.renew.each(),
	}
	if r.hub.Members > 0 {
		c.recordBytes = float64(r.hub.Bytes) / float64(r.hub.Members)
	}
	heard, worst := 0, crowd.Spread{}
	for _, s := range r.changes {
		heard += s.Heard
	}
	for _, e := range r.reached {
		if e.P99 > worst.P99 {
			worst = e.Spread
		}
	}
	c.expelFirst = time.Duration(worst.First * float64(time.Millisecond))
	c.expelSpread = time.Duration((worst.P99 - worst.First) * float64(time.Millisecond))
	if heard > 0 { // without the traffic of an idle collective
		took := r.change.took.Seconds()
		c.deliverCPU = time.Duration(max(0, r.change.cpu.Seconds()-took*c.idleCPU*n) / float64(heard) * float64(time.Second))
		c.deliverBytes = max(0, float64(r.change.sent)-took*c.idleBytes*n) / float64(heard)
	}
	return c
}

// paperFigures returns figures that are computed, not measured.
func (r *crowdRun) paperFigures() []Measurement {
	c, renewal, cores := r.costs(), renewEvery(), float64(runtime.NumCPU())
	here := c.at(r.plan.members, renewal, cores)
	day := once(crowdName("directory, for each member and day"), "MB", here.memberDay/1e6)
	day.Note = fmt.Sprintf("on paper, with %d members: a record of %.0f bytes, %.0f on the wire, from each every %v, and %.1f bytes a second of heads and pings; a first copy has %.1f MB",
		r.plan.members, c.recordBytes, c.deliverBytes, renewal, c.idleBytes, here.firstCopy/1e6)
	found := []Measurement{day}
	p := c.at(projected, renewal, cores)
	for _, f := range []struct {
		what, unit string
		value      float64
	}{
		{"memory", "GiB", p.memory / (1 << 30)},
		{"processor use", "cores", p.cores},
		{"of this, to tell records", "cores", p.feedCores},
		{"outbound", "Mbit/s", p.outbound / 1e6},
		{"directory, for each member and day", "MB", p.memberDay / 1e6},
		{"first copy", "MB", p.firstCopy / 1e6},
		{"all join", "minutes", p.joinAll.Minutes()},
		{"an expulsion reaches all, 99th percentile", "ms", stats.Milliseconds(p.expel)},
	} {
		found = append(found, once(crowdName(fmt.Sprintf("%d members on paper: %s", projected, f.what)), f.unit, f.value))
	}
	found[1].Note = assumptions(renewal, cores)
	return found
}
