package mptcp

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
)

func TestCommandErrorReasons(t *testing.T) {
	reasons := []error{ErrNoConnection, ErrNoSubflow, ErrKernelPM, ErrFamily, ErrAddressID, ErrNoAddress}
	for _, tc := range []struct {
		errno   syscall.Errno
		message string
		want    error
	}{
		{syscall.EINVAL, "invalid token", ErrNoConnection},
		{syscall.ESRCH, "", ErrNoSubflow}, // 6.1
		{syscall.ESRCH, "subflow not found", ErrNoSubflow},
		{syscall.EINVAL, "subflow not found", ErrNoSubflow},
		{syscall.EINVAL, "invalid request; userspace PM not selected", ErrKernelPM}, // 6.1
		{syscall.EINVAL, "userspace PM not selected", ErrKernelPM},
		{syscall.EINVAL, "families mismatch", ErrFamily},
		{syscall.EINVAL, "did not match address and id", ErrAddressID},
		{syscall.EINVAL, "address with specified id not found", ErrNoAddress}, // 6.1
		{syscall.EINVAL, "address with id 3 not found", ErrNoAddress},
		{syscall.EADDRINUSE, "connect error: -98", nil},
	} {
		err := error(&CommandError{Op: "create subflow", Errno: tc.errno, Message: tc.message})
		if !errors.Is(err, tc.errno) {
			t.Errorf("%v is not %v", err, tc.errno)
		}
		for _, reason := range reasons {
			if got := errors.Is(err, reason); got != (tc.want != nil && errors.Is(reason, tc.want)) {
				t.Errorf("%v is %q: %v", err, reason, got)
			}
		}
	}
}

func TestErrorTexts(t *testing.T) {
	err := &CommandError{
		Op: "create subflow", Token: 0xab, Local: netip.MustParseAddrPort("10.0.0.2:0"),
		Remote: netip.MustParseAddrPort("192.0.2.7:3000"), Errno: syscall.EINVAL, Message: "invalid token",
	}
	want := "create subflow of connection 000000ab from 10.0.0.2:0 to 192.0.2.7:3000: invalid argument (invalid token)"
	if got := err.Error(); got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	want = "the userspace path manager of MPTCP is not available (it needs Linux 5.19 or newer); boot a newer kernel"
	if got := unsupported(Userspace).Error(); got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}
