package relay

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// rights are the capabilities that a relay uses: for sockets with marks and with foreign addresses, for DNS answers, for
// the programs in the kernel that lead other programs' connections to it, and for ports below 1024.
const rights uint64 = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_BPF | 1<<unix.CAP_NET_BIND_SERVICE

// LimitRights drops all capabilities that a relay does not use, for good. If the process has any, LimitRights executes
// the program again with the same arguments, because capabilities belong to threads, and Go has started several by now.
// It must be called before anything else.
func LimitRights() error {
	// If executing fails, no other goroutine may run on this thread, which has fewer capabilities.
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var held [2]unix.CapUserData // bits 0 to 31, and the others
	if err := unix.Capget(&header, &held[0]); err != nil {
		return fmt.Errorf("read this process's rights: %w", err)
	}
	limited := held
	for i := range limited {
		keep := held[i].Permitted & uint32(rights>>(32*i))
		limited[i] = unix.CapUserData{Permitted: keep, Effective: keep}
	}
	if held[0].Permitted == limited[0].Permitted && held[1].Permitted == limited[1].Permitted {
		runtime.UnlockOSThread()
		return nil
	}
	// Without this, a program that root starts gets all rights again.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("renounce new rights: %w", err)
	}
	if err := unix.Capset(&header, &limited[0]); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	if err := syscall.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
		return fmt.Errorf("start again without the rights that were given up: %w", err)
	}
	return nil
}
