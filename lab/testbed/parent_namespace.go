package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// connectionBuckets is the size of each host's own table of connections. By default, hosts share the machine's table of
// hundreds of thousands of buckets. Listing one host's sockets would scan all of it, which takes half a millisecond in
// which that processor delivers no packets. This size suffices for the tens of thousands of connections that a
// benchmark leaves in TIME-WAIT.
const connectionBuckets = "4096"

// parentNamespace returns the network namespace from which hosts' namespaces are created. It has no other use. A new
// namespace takes the size of its table from its creator's settings (tcp_child_ehash_entries, Linux 6.1,
// Documentation/networking/ip-sysctl.rst), and the lab does not change the machine's settings.
var parentNamespace = sync.OnceValues(func() (namespace *os.File, err error) {
	done := make(chan struct{})
	go offMainThread(func() { // the thread ends, because it is in another namespace than the others
		defer close(done)
		namespace, err = makeParentNamespace()
	})
	<-done
	return namespace, err
})

func makeParentNamespace() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, namespacesRefused(err)
	}
	if err := setSysctl("net.ipv4.tcp_child_ehash_entries", connectionBuckets); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.Open("/proc/thread-self/ns/net")
}

// enterParentNamespace moves the calling thread to the parent namespace.
func enterParentNamespace() error {
	namespace, err := parentNamespace()
	if err != nil {
		return err
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the namespace in which hosts are made: %w", err)
	}
	return nil
}

// namespacesRefused returns an error that explains why namespaces cannot be created, with a remedy.
func namespacesRefused(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("create namespaces: %w: run the lab as root", err)
	}
	return fmt.Errorf("create namespaces: %w", err)
}
