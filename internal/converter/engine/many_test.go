package engine

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// manyPairs of the environment has TestManyIdlePairs hold that many pairs.
	manyPairs = "DCOL_IDLE_PAIRS"
	// childEnds of the environment makes the test's program the clients and the server of one engine.
	childEnds = "DCOL_TEST_ENDS"
	// kernelEstimate bounds what a pair's four sockets take of the kernel's memory, to see whether there is enough.
	kernelEstimate = 40 << 10
)

// ends is a server that says one byte to each who connects, and clients. It says where the server listens. For each line
// with an address and a number on its standard input it opens that many MPTCP connections there, one after another, each
// of which must bring a byte, and says how many nanoseconds the last took.
func ends() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		file, err := l.(*net.TCPListener).File()
		for err == nil {
			_ = unix.SetNonblock(int(file.Fd()), false)
			var fd int
			if fd, _, err = unix.Accept4(int(file.Fd()), unix.SOCK_CLOEXEC); err == nil {
				_, err = unix.Write(fd, []byte{1})
			}
		}
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}()
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		addr, count, _ := strings.Cut(in.Text(), " ")
		to, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(count)
		if err != nil {
			return err
		}
		var took time.Duration
		for range n {
			began := time.Now()
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
			}
			if err != nil {
				return err
			}
			if got, err := unix.Read(fd, make([]byte, 1)); err != nil || got != 1 {
				return fmt.Errorf("a new connection brings %d bytes: %w", got, err)
			}
			took = time.Since(began)
		}
		fmt.Println(took.Nanoseconds())
	}
	return nil
}

// cell is an engine in its own process, with as many clients as descriptors allow and their server.
type cell struct {
	engine, ends *process
	pairs        int
}

// open opens pairs, and returns how long the last took until it brought a byte.
func (c *cell) open(pairs int) (last time.Duration, err error) {
	if _, err := fmt.Fprintf(c.ends.in, "%v %d\n", c.engine.at, pairs); err != nil {
		return 0, err
	}
	if !c.ends.out.Scan() {
		return 0, fmt.Errorf("%d pairs were not opened: %s", pairs, c.ends.log.String())
	}
	ns, err := strconv.ParseInt(c.ends.out.Text(), 10, 64)
	return time.Duration(ns), err
}

// TestManyIdlePairs measures what idle pairs of MPTCP and TCP cost, and that a new connection is served beside them. A
// process has as many descriptors as its hard limit allows, so that there is an engine for each few thousand.
//
//	DCOL_IDLE_PAIRS=100000 go test -v -run TestManyIdlePairs ./internal/converter/engine
func TestManyIdlePairs(t *testing.T) {
	wanted, err := strconv.Atoi(os.Getenv(manyPairs))
	if err != nil {
		t.Skipf("set %s to a number of pairs; 100000 take two minutes and 3 GB", manyPairs)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	if free := meminfo(t, "MemAvailable") - 2<<30; free < int64(wanted)*kernelEstimate {
		t.Skipf("%d pairs may need %d MB, and %d MB are free", wanted, wanted*kernelEstimate>>20, free>>20)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with its processes
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	most := (int(descriptorLimit()) - spareDescriptors - 4*pipesMost) / 2
	count := (wanted + most - 1) / most
	var cells []*cell
	for i := range count {
		c := &cell{pairs: wanted/count + min(1, max(0, wanted%count-i))}
		c.ends = startProcess(t, childEnds+"=yes")
		c.engine = startProcess(t, childServer+"="+c.ends.at.String(), childHas+"=0", childMPTCP+"=yes")
		cells = append(cells, c)
	}
	before := measure(t, cells)
	began := time.Now()
	var all sync.WaitGroup
	turns := make(chan struct{}, runtime.NumCPU())
	for _, c := range cells {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if _, err := c.open(c.pairs); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	after := measure(t, cells)
	opened := time.Since(began)
	if after.pairs != int64(wanted) {
		t.Errorf("%d pairs, want %d", after.pairs, wanted)
	}
	user := (after.heap - before.heap) / int64(wanted)
	t.Logf("%d pairs in %d engines, opened in %.0f s", wanted, count, opened.Seconds())
	t.Logf("user memory of a pair: %d bytes of the heap, %d resident", user, (after.resident-before.resident)/int64(wanted))
	t.Logf("kernel memory of a pair's four sockets: %d bytes of slabs", (after.slab-before.slab)/int64(wanted))
	if user > 1000 {
		t.Errorf("a pair costs %d bytes of user memory, more than 1000", user)
	}
	for _, c := range cells {
		took, err := c.open(20) // the last is not the first after a pause
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("connect to first byte beside them: %v", took)
	}
}

// costs are sums over all cells, in bytes; slab is the machine's.
type costs struct{ pairs, heap, resident, slab int64 }

func measure(t *testing.T, cells []*cell) (sum costs) {
	for _, c := range cells {
		r := c.engine.ask("")
		sum.pairs += r.Counters.Pairs
		sum.heap += int64(r.Heap)
		sum.resident += kilobytes(t, fmt.Sprintf("/proc/%d/status", c.engine.cmd.Process.Pid), "VmRSS")
	}
	sum.slab = meminfo(t, "Slab")
	return sum
}

func meminfo(t *testing.T, field string) int64 { return kilobytes(t, "/proc/meminfo", field) }

// kilobytes returns a field of a file in bytes.
func kilobytes(t *testing.T, file, field string) int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kB, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kB << 10
		}
	}
	t.Fatalf("%s has no %s", file, field)
	return 0
}
