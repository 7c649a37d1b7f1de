package mptcpify

import (
	"errors"
	"os/exec"
	"runtime"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	hook "github.com/detour-collective/dcol/internal/kernel/bpf/mptcpify"
)

// Method is a method of getting MPTCP sockets on this host.
type Method struct {
	Name      string // stable, for programs
	For       string // whose sockets become MPTCP, in words
	Available bool
	Why       string // why it is or is not available
	Fix       string // how to make it available; empty if it is
}

// Methods tests each method, and leaves no trace.
func Methods() []Method {
	return []Method{
		method("seccomp", "any program, with `dcol run -- PROGRAM`", "tested with a filter", trySeccomp()),
		method("bpf", "all programs of a network namespace or a cgroup", "tested with an attached program", tryHook()),
		method("mptcpize", "dynamically linked programs, with `mptcpize run PROGRAM`", "it is installed", tryMptcpize()),
		{
			Name: "program", For: "programs that request MPTCP themselves", Available: true,
			Why: "Go programs do for listening, and with GODEBUG=multipathtcp=1 for dialling too; many others have a setting",
		},
	}
}

func method(name, whose, why string, err error) Method {
	if err == nil {
		return Method{Name: name, For: whose, Available: true, Why: why}
	}
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) {
		return Method{Name: name, For: whose, Why: unavailable.Err.Error(), Fix: unavailable.Fix}
	}
	return Method{Name: name, For: whose, Why: err.Error(), Fix: "unexpected: please report it with `uname -a`"}
}

// trySeccomp installs a filter that allows everything. The filter ends with its thread, right afterwards.
func trySeccomp() error {
	if err := checkProc(); err != nil {
		return err
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		listener, err := installFilter([]bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}})
		if err == nil {
			err = unix.Close(listener)
		}
		result <- err
	}()
	return <-result
}

// tryHook attaches the hook's program to a network namespace that does not exist, so that it changes nothing.
func tryHook() error {
	h, err := hook.Attach(hook.Scope{NetworkNamespace: 0})
	var refused *hook.UnavailableError
	if errors.As(err, &refused) {
		return &UnavailableError{Method: "bpf", Fix: refused.Fix, Err: refused.Err}
	}
	if err != nil {
		return err
	}
	return h.Close()
}

func tryMptcpize() error {
	if _, err := exec.LookPath("mptcpize"); err != nil {
		return &UnavailableError{Method: "mptcpize", Fix: "apt-get install mptcpize", Err: err}
	}
	return nil
}
