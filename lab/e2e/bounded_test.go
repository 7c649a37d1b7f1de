package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/police"
	"github.com/detour-collective/dcol/lab/testbed"
)

// twoPaths has a direct path and one through bob, of 10 Mbit/s and a round trip of 30 ms each.
func twoPaths(s *testbed.Spec) {
	link := func(name, a, b string, rate int64, delay time.Duration, cost int) testbed.LinkSpec {
		p := testbed.LinkParams{Rate: rate, Delay: delay}
		return testbed.LinkSpec{Name: name, A: a, B: b, AtoB: p, BtoA: p, Cost: cost}
	}
	const east = "east"
	s.Backend = testbed.BackendEmulator
	s.Hosts = append(s.Hosts, testbed.HostSpec{Name: east, Forward: true})
	s.Links = []testbed.LinkSpec{
		link(alice, alice, router, 100e6, time.Millisecond, 1),
		link(mallory, mallory, router, 100e6, time.Millisecond, 1),
		link(bob, bob, router, 100e6, 5*time.Millisecond, 100),
		link("direct", router, east, 10e6, 12*time.Millisecond, 1),
		link("out", bob, east, 10e6, 7*time.Millisecond, 100),
		link(server, server, east, 100e6, 2*time.Millisecond, 1),
	}
}

// A detour whose rate is bounded by marks carries no more than that, loses nothing, and leaves the direct path as it is.
// Messages on the same path wait no longer than without bulk traffic.
func TestBoundedDetour(t *testing.T) {
	w := standard(newWorldWith(t, twoPaths))
	w.sysctl(alice, "net.ipv4.tcp_ecn", "1")
	ofAlice, _ := w.startBoth()
	w.echo()
	throughBob, err := netip.ParseAddrPort(strings.TrimSpace(w.dcol(alice, "map", port(w.addr4(server), echoPort), "--via", bob)))
	if err != nil {
		t.Fatal(err)
	}
	messages := w.ask(throughBob)
	w.eventually("messages are answered", func() error { return holds(len(messages.last(1)) > 0, "none") })
	const asked = 60
	wait(t.Context(), 6*time.Second)
	alone := messages.last(asked)
	w.host(alice).Command(w.life(), program, "run", "--", "curl", "-s", "-o", "/dev/null", w.url()).Start()
	c := w.detoured()
	var p *police.Policer
	err = inNetworkOf(ofAlice.cmd.Process.Pid, func() (err error) {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		var indexes []int
		for _, l := range links {
			indexes = append(indexes, l.Index)
		}
		if p, err = police.Open(); err != nil {
			return err
		}
		return p.Attach(indexes)
	})
	if err != nil {
		t.Fatal(err)
	}
	bounded := police.Flow{Src: detour(c).Remote, Dst: detour(c).Local}
	carried := func(over time.Duration) (direct, through float64) {
		before, began := w.mustStatus(alice).Client.Connections[0], time.Now()
		wait(t.Context(), over)
		after, took := w.mustStatus(alice).Client.Connections[0], time.Since(began).Seconds()
		rate := func(i int) float64 {
			return 8 * float64(after.Subflows[i].BytesReceived-before.Subflows[i].BytesReceived) / took / 1e6
		}
		return rate(0), rate(1)
	}
	direct, through := carried(3 * time.Second)
	queued := messages.last(20)
	t.Logf("without a bound: %.1f and %.1f Mbit/s", direct, through)
	const rate = 3
	if err := p.Bound(bounded, rate*1e6); err != nil {
		t.Fatal(err)
	}
	wait(t.Context(), 2*time.Second)
	directNow, throughNow := carried(6 * time.Second)
	beside := messages.last(asked)
	counts, _, err := p.Counts(bounded)
	t.Logf("bounded to %d Mbit/s: %.1f and %.1f Mbit/s, %+v, %v", rate, directNow, throughNow, counts, err)
	// TCP sends again without ECN (RFC 3168, 6.1.5), so these are dropped.
	if throughNow > 1.25*rate || throughNow < 0.3*rate && through > rate || counts.Marked == 0 || counts.Dropped > counts.Marked/10 || directNow < 0.93*direct {
		t.Errorf("%.1f and %.1f Mbit/s, %+v", directNow, throughNow, counts)
	}
	// A busy machine delays the programs and the emulated links, so that some messages wait longer. In an unbounded download's
	// queue, all of them wait much longer than that.
	for p, slack := range map[int]time.Duration{50: 3 * time.Millisecond, 95: 30 * time.Millisecond} {
		is, was, in := percentile(beside, p), percentile(alone, p), percentile(queued, p)
		t.Logf("messages (%d %%) waited %v alone, %v in the queue, %v beside the bounded download", p, was, in, is)
		if limit := was*11/10 + slack; len(beside) < asked || is > limit || in <= limit {
			t.Errorf("messages (%d %%) waited %v alone, %v in the queue, %v beside the bounded download: at most %v", p, was, in, is, limit)
		}
	}
	if err := inNetworkOf(ofAlice.cmd.Process.Pid, p.Close); err != nil {
		t.Error(err)
	}
}

// inNetworkOf calls f in the network namespace of a process, with this process's files: those of a host have no /proc, which
// the eBPF library needs.
func inNetworkOf(pid int, f func() error) error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		failed <- err
	}()
	return <-failed
}

func wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

const echoPort = 8081

// echo starts a server that sends back what it gets.
func (w *world) echo() {
	w.Helper()
	echo := w.host(server).Command(w.life(), program, "run", "--", "socat", fmt.Sprintf("TCP-LISTEN:%d,reuseaddr,fork,nodelay", echoPort), "PIPE")
	if err := echo.Start(); err != nil {
		w.Fatal(err)
	}
	w.eventually("the echo listens", func() error {
		return holds(w.run(server, "ss", "-Htln", fmt.Sprintf("sport = :%d", echoPort)) != "", "nothing listens")
	})
}

// asks prints how many microseconds each of its messages waits for its echo, for ever.
const asks = `exec 3<>/dev/tcp/$0/$1
while :; do
	asked=$EPOCHREALTIME; echo "$asked" >&3; read -r <&3 || exit; answered=$EPOCHREALTIME
	echo $((${answered/./} - ${asked/./})); sleep 0.05
done`

// messages is a stream of messages of alice.
type messages struct {
	*world
	waits string // the file with how long each waited
}

// ask starts to send messages to an echo. run is the command that the sending program is run with, if any.
func (w *world) ask(to netip.AddrPort, run ...string) messages {
	w.Helper()
	waits, err := os.Create(filepath.Join(w.dir, "waits"))
	if err != nil {
		w.Fatal(err)
	}
	defer waits.Close()
	sends := slices.Concat(run, []string{"bash", "-c", asks, to.Addr().String(), strconv.Itoa(int(to.Port()))})
	command := w.host(alice).Command(w.life(), sends[0], sends[1:]...)
	command.Stdout = waits
	if err := command.Start(); err != nil {
		w.Fatal(err)
	}
	return messages{w, waits.Name()}
}

// last returns how long the last messages waited, at most so many, in ascending order.
func (m messages) last(count int) (all []time.Duration) {
	m.Helper()
	data, err := os.ReadFile(m.waits)
	if err != nil {
		m.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(data)) {
		if n, err := strconv.Atoi(word); err == nil {
			all = append(all, time.Duration(n)*time.Microsecond)
		}
	}
	all = all[max(0, len(all)-count):]
	slices.Sort(all)
	return all
}

// percentile returns a percentile of sorted durations, or 0 if there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*p/100, len(sorted)-1)].Round(100 * time.Microsecond)
}

// Where a host's messages wait behind its own download on every path, and the host asks for ECN, the agent bounds the
// download, and they wait less, whichever began first. Nothing is left when the agent has stopped.
func TestBulkGivesWay(t *testing.T) {
	t.Run("messages first", func(t *testing.T) { bulkGivesWay(t, false) })
	t.Run("download first", func(t *testing.T) { bulkGivesWay(t, true) })
}

func bulkGivesWay(t *testing.T, downloadFirst bool) {
	w := standard(newWorldWith(t, twoPaths))
	w.configure(alice, strings.Replace(clientConfig("", w.addr4(bob).String()), "selection = \"oldest\"", "selection = \"worth\"", 1))
	w.sysctl(alice, "net.ipv4.tcp_ecn", "1")
	ofAlice, _ := w.startBoth()
	w.echo()
	var messages messages
	ask := func() { messages = w.ask(netip.AddrPortFrom(w.addr4(server), echoPort), program, "run", "--") }
	if !downloadFirst {
		ask()
	}
	// One connection carries all files, so that the download does not pause while curl starts.
	if err := w.host(alice).Command(w.life(), program, "run", "--", "curl", "-s", "-o", "/dev/null", w.url()+"?[1-1000]").Start(); err != nil {
		t.Fatal(err)
	}
	if downloadFirst {
		wait(t.Context(), 10*time.Second) // its queues are full
		ask()
	}
	lately := func(count int) time.Duration { return percentile(messages.last(count), 50) }
	var before time.Duration
	// Where the machine is so busy that the first bound does not help, the agent tries the next after a minute.
	const limit = 3 * time.Minute
	w.within(limit, "the download is bounded", func() error {
		var why []string
		for _, c := range w.mustStatus(alice).Client.Connections {
			for i := range c.Subflows {
				why = append(why, fmt.Sprintf("%s %s %s", c.Traffic, c.Subflows[i].Kind, c.Subflows[i].Why))
			}
		}
		bounded := strings.Contains(strings.Join(why, "\n"), "because messages wait in its queue")
		if !bounded {
			before = lately(12) // all of them waited: the bound begins after four seconds of that
		}
		return holds(bounded, "%v, %q", before, why)
	})
	var after time.Duration
	w.within(limit, "messages wait less", func() error {
		after = lately(40)
		return holds(after < before*3/4, "%v, before %v", after, before)
	})
	t.Logf("messages waited %v, and %v beside the bounded download", before, after)
	ofAlice.stop()
	if left := w.run(alice, "sh", "-c", "for i in $(ls /sys/class/net); do tc filter show dev $i ingress; done 2>/dev/null"); strings.Contains(left, "police") {
		t.Errorf("left: %s", left)
	}
}
