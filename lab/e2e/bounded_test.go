package e2e

import (
	"context"
	"fmt"
	"net"
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
func TestBoundedDetour(t *testing.T) {
	w := standard(newWorldWith(t, twoPaths))
	w.sysctl(alice, "net.ipv4.tcp_ecn", "1")
	ofAlice, _ := w.startBoth()
	w.host(alice).Command(w.life(), program, "run", "--", "curl", "-s", "-o", "/dev/null", w.url()).Start()
	c := w.detoured()
	var p *police.Policer
	err := inNetworkOf(ofAlice.cmd.Process.Pid, func() (err error) {
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
	t.Logf("without a bound: %.1f and %.1f Mbit/s", direct, through)
	const rate = 3
	if err := p.Bound(bounded, rate*1e6); err != nil {
		t.Fatal(err)
	}
	wait(t.Context(), 2*time.Second)
	directNow, throughNow := carried(4 * time.Second)
	counts, _, err := p.Counts(bounded)
	t.Logf("bounded to %d Mbit/s: %.1f and %.1f Mbit/s, %+v, %v", rate, directNow, throughNow, counts, err)
	// TCP sends again without ECN (RFC 3168, 6.1.5), so these are dropped.
	if throughNow > 1.25*rate || throughNow < 0.3*rate && through > rate || counts.Marked == 0 || counts.Dropped > counts.Marked/10 || directNow < direct/2 {
		t.Errorf("%.1f and %.1f Mbit/s, %+v", directNow, throughNow, counts)
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

// asks prints how many milliseconds each of its messages waits for its echo, for ever.
const asks = `exec 3<>/dev/tcp/$0/8081
while :; do
	asked=$EPOCHREALTIME; echo "$asked" >&3; read -r <&3 || exit; answered=$EPOCHREALTIME
	echo $(((${answered/./} - ${asked/./}) / 1000)); sleep 0.05
done`

// Where a host's messages wait behind its own download on every path, the agent bounds the download, and they wait less,
// whichever began first. Nothing is left when the agent has stopped.
func TestBulkGivesWay(t *testing.T) {
	t.Run("messages first", func(t *testing.T) { bulkGivesWay(t, false) })
	t.Run("download first", func(t *testing.T) { bulkGivesWay(t, true) })
}

func bulkGivesWay(t *testing.T, downloadFirst bool) {
	w := standard(newWorldWith(t, twoPaths))
	w.configure(alice, strings.Replace(clientConfig("", w.addr4(bob).String()), "selection = \"oldest\"", "selection = \"worth\"", 1))
	w.sysctl(alice, "net.ipv4.tcp_ecn", "1")
	ofAlice, _ := w.startBoth()
	echo := w.host(server).Command(w.life(), program, "run", "--", "socat", "TCP-LISTEN:8081,reuseaddr,fork,nodelay", "PIPE")
	if err := echo.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("the echo listens", func() error {
		return holds(w.run(server, "ss", "-Htln", "sport = :8081") != "", "nothing listens")
	})
	waits, err := os.Create(filepath.Join(w.dir, "waits"))
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	begin := []*testbed.Cmd{
		w.host(alice).Command(w.life(), program, "run", "--", "bash", "-c", asks, w.addr4(server).String()),
		// One connection carries all files, so that the download does not pause while curl starts.
		w.host(alice).Command(w.life(), program, "run", "--", "curl", "-s", "-o", "/dev/null", w.url()+"?[1-1000]"),
	}
	begin[0].Stdout = waits
	if downloadFirst {
		slices.Reverse(begin)
	}
	for i, c := range begin {
		if i > 0 && downloadFirst {
			wait(t.Context(), 10*time.Second) // its queues are full
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	// lately returns the median of the last messages.
	lately := func(count int) int {
		data, err := os.ReadFile(waits.Name())
		if err != nil {
			t.Fatal(err)
		}
		var all []int
		for word := range strings.FieldsSeq(string(data)) {
			if n, err := strconv.Atoi(word); err == nil {
				all = append(all, n)
			}
		}
		if len(all) == 0 {
			return 0
		}
		all = all[max(0, len(all)-count):]
		slices.Sort(all)
		return all[len(all)/2]
	}
	var before int
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
		return holds(bounded, "%d ms, %q", before, why)
	})
	var after int
	w.within(limit, "messages wait less", func() error {
		after = lately(40)
		return holds(after < before*3/4, "%d ms, before %d ms", after, before)
	})
	t.Logf("messages waited %d ms, and %d ms beside the bounded download", before, after)
	ofAlice.stop()
	if left := w.run(alice, "sh", "-c", "for i in $(ls /sys/class/net); do tc filter show dev $i ingress; done 2>/dev/null"); strings.Contains(left, "police") {
		t.Errorf("left: %s", left)
	}
}
