package openvpn

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace in which processes are started. An agent uses one; tests and
// the lab use several in one process.
type namespace struct{ file *os.File }

// currentNamespace returns the calling thread's namespace.
func currentNamespace() (*namespace, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open this network namespace: %w", err)
	}
	return &namespace{file: file}, nil
}

// enter moves the calling thread into the namespace. If the thread is already there, this needs no
// privileges, since an agent may not change namespaces.
func (n *namespace) enter() error {
	here, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("look at this network namespace: %w", err)
	}
	there, err := n.file.Stat()
	if err != nil {
		return fmt.Errorf("look at the network namespace: %w", err)
	}
	if os.SameFile(here, there) {
		return nil
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	return nil
}

func (n *namespace) close() { n.file.Close() }

// do runs fn on a thread in the namespace.
func (n *namespace) do(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here, as it may be in another namespace
		err := n.enter()
		if err == nil {
			err = fn()
		}
		result <- err
	}()
	return <-result
}
