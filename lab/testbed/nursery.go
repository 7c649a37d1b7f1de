package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// connectionBuckets is the size of each host's own table of connections. Otherwise
// hosts share the machine's, of hundreds of thousands of buckets, and every look at the
// sockets of one goes through all of it: half a millisecond of a processor, in which
// it delivers no packet either. This bears the tens of thousands of connections that
// a benchmark leaves in TIME-WAIT.
const connectionBuckets = "4096"

// nursery is the network namespace that hosts' own are made in. Nothing else happens
// there: a new namespace takes the size of its table from the one of its maker
// (tcp_child_ehash_entries, Linux 6.1, Documentation/networking/ip-sysctl.rst), and the
// machine's settings are not ours to change.
var nursery = sync.OnceValues(func() (namespace *os.File, err error) {
	done := make(chan struct{})
	go offMainThread(func() { // which ends, as it is no longer where the others are
		defer close(done)
		namespace, err = newNursery()
	})
	<-done
	return namespace, err
})

func newNursery() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, namespacesRefused(err)
	}
	if err := setSysctl("net.ipv4.tcp_child_ehash_entries", connectionBuckets); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.Open("/proc/thread-self/ns/net")
}

// enterNursery moves the calling thread there.
func enterNursery() error {
	namespace, err := nursery()
	if err != nil {
		return err
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the namespace in which hosts are made: %w", err)
	}
	return nil
}

// namespacesRefused says why namespaces cannot be created, and how to mend it.
func namespacesRefused(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("create namespaces: %w: run the lab as root", err)
	}
	return fmt.Errorf("create namespaces: %w", err)
}
