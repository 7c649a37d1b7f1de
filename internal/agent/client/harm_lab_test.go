package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/keepalive"
	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// What the client in the lab has of the kernel besides its MPTCP.

// openProber is for the client's network. The thread keeps the test's own /proc, which
// loading programs needs and a thread in all of a host's namespaces does not have.
func (l *lab) openProber() prober {
	l.t.Helper()
	var network *os.File
	l.do("client", func() (err error) {
		network, err = os.Open("/proc/1/ns/net")
		return err
	})
	defer network.Close()
	var p *keepalive.Prober
	opened := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			p, err = keepalive.Open("")
		}
		opened <- err
	}()
	err := <-opened
	if e, ok := errors.AsType[*sockops.Error](err); ok && !e.Occupied {
		return nil
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { p.Close() })
	return p
}

// counting reads the kernel's counters by a process of the client's: the test's own threads
// have none in the client's /proc.
type counting struct {
	*mptcp.Namespace
	l *lab
}

func (k counting) ChecksumErrors() (n uint64, err error) {
	script := `awk '/^MPTcpExt:/ && !n {n = split($0, name)} /^MPTcpExt: [0-9]/ {for (i = 1; i <= n; i++) if (name[i] == "DataCsumErr") print $i}' /proc/net/netstat`
	out, err := k.l.Host("client").Command(context.Background(), "sh", "-c", script).Output()
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(out), &n)
	return n, err
}
