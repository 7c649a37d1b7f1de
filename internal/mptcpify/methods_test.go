package mptcpify

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMethods(t *testing.T) {
	defer goleak.VerifyNone(t)
	methods := Methods()
	var names []string
	for _, m := range methods {
		names = append(names, m.Name)
		t.Logf("%+v", m)
		if m.Available == (m.Fix != "") {
			t.Errorf("%s: available %v, yet the fix is %q", m.Name, m.Available, m.Fix)
		}
		if m.For == "" || m.Why == "" {
			t.Errorf("%s: says too little: %+v", m.Name, m)
		}
	}
	if diff := cmp.Diff([]string{"seccomp", "bpf", "mptcpize", "program"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// seccomp must be available in the list if and only if `dcol run` works.
	ran := end(t, run(t, "true")).code == 0
	if methods[0].Available != ran {
		t.Errorf("seccomp available %v, but dcol run works %v", methods[0].Available, ran)
	}
	// Trying must leave this process as it was.
	text, err := exec.Command("grep", "^Seccomp:", "/proc/self/status").Output()
	if err != nil || strings.TrimSpace(string(text)) != "Seccomp:\t0" {
		t.Errorf("children are under a filter now: %q %v", text, err)
	}
}

func TestMethodSaysWhyNot(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want Method
	}{
		{"works", nil, Method{Name: "n", For: "f", Available: true, Why: "ok"}},
		{"typed", unavailable(unix.EINVAL), Method{Name: "n", For: "f", Why: "invalid argument", Fix: "needs Linux 5.19 or newer"}},
		{"unexpected", errors.New("odd"), Method{Name: "n", For: "f", Why: "odd", Fix: "unexpected: please report it with `uname -a`"}},
	} {
		if diff := cmp.Diff(c.want, method("n", "f", "ok", c.err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
