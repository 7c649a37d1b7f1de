package waypoint

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

const (
	// lookAtLoad is the interval at which the waypoint's load is measured.
	lookAtLoad = 2 * time.Second
	// tellsGives is the factor by which the rate that one more member would get must change before a loaded or full waypoint
	// reports it again.
	tellsGives = 1.2
)

// loadMeter measures the waypoint's use: the bytes of its members and the time of its processors. Only watchLoad uses it.
type loadMeter struct {
	limit     int64 // bytes per second in each direction; 0: none
	at        time.Time
	bytes     map[string][2]uint64 // by member, in both directions
	processor []processorTime
}

// processorTime has the time of one processor since the host's start, in ticks.
type processorTime struct{ forwarding, all uint64 }

// watchLoad measures the load, decides whether the waypoint is loaded, and tells the loop and the members.
func (w *Waypoint) watchLoad() {
	meter := loadMeter{limit: w.loop.config.Bandwidth}
	var load giving.Load
	var told time.Time
	var toldGives float64 // bits a second
	tick := time.NewTicker(lookAtLoad)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			usage := meter.read(w.Snapshot, now)
			until, gives := load.Take(usage, now), 0.0
			if !until.IsZero() || usage.Full() {
				gives = 8 * usage.Gives()
			}
			news := max(gives, toldGives) > tellsGives*min(gives, toldGives)
			if until.Equal(told) && !news || w.ask(func() { w.loop.loadedUntil = until }) != nil {
				continue
			}
			if until.IsZero() != told.IsZero() {
				w.loop.log.Info("the waypoint's load has changed", "until", until)
			}
			told, toldGives = until, gives
			if w.loop.config.TellLoad != nil {
				w.loop.config.TellLoad(until, gives)
			}
		}
	}
}

// read returns the usage since the last call. It reads members' use only where that can decide, because it
// must list every connection.
func (m *loadMeter) read(snapshot func() (Snapshot, error), now time.Time) (u giving.Usage) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		stat = nil // without the processors, the rate decides
	}
	u.Processor = m.processors(parseProcessors(stat))
	if m.limit == 0 && u.Processor < giving.Busy {
		m.bytes = nil
		return u
	}
	s, err := snapshot()
	if err != nil {
		return giving.Usage{}
	}
	m.members(s.Members, now, &u)
	return u
}

// members adds to u the members that used the waypoint since the last call, and their bytes.
func (m *loadMeter) members(list []MemberSnapshot, now time.Time, u *giving.Usage) {
	before, elapsed := m.bytes, now.Sub(m.at).Seconds()
	m.bytes, m.at = make(map[string][2]uint64, len(list)), now
	var sum [2]float64
	for _, member := range list {
		bytes := [2]uint64{member.BytesFromClient, member.BytesToClient}
		m.bytes[member.Name] = bytes
		if before == nil {
			continue
		}
		used := false
		for i, n := range bytes {
			if n > before[member.Name][i] { // a count can shrink if an agent ended and a part of it was lost
				sum[i] += float64(n - before[member.Name][i])
				used = true
			}
		}
		if used {
			u.Members++
		}
	}
	if elapsed > 0 {
		u.Rate, u.Limit = max(sum[0], sum[1])/elapsed, float64(m.limit)
	}
}

// processors returns the share of the busiest processor's time that was spent on forwarding since the last call.
func (m *loadMeter) processors(now []processorTime) (busiest float64) {
	if len(now) == len(m.processor) {
		for i, p := range now {
			before := m.processor[i]
			if p.all > before.all && p.forwarding > before.forwarding {
				busiest = max(busiest, float64(p.forwarding-before.forwarding)/float64(p.all-before.all))
			}
		}
	}
	m.processor = now
	return min(busiest, 1)
}

// parseProcessors reads the lines of /proc/stat that begin with the name of a processor. The time of forwarding
// is that of software interrupts, the seventh column (proc_stat(5)).
func parseProcessors(stat []byte) (list []processorTime) {
	const softirq, steal = 7, 8 // fields of a line; the times of guests after these are counted in others
	for lines := bufio.NewScanner(bytes.NewReader(stat)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) <= steal || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" {
			continue
		}
		var p processorTime
		for i, field := range fields[1 : steal+1] {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return nil
			}
			p.all += n
			if i+1 == softirq {
				p.forwarding = n
			}
		}
		list = append(list, p)
	}
	return list
}
