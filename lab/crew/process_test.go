package crew

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts start as this executable
	goleak.VerifyTestMain(m)
}

// oneHost returns a crew on a network of two hosts.
func oneHost(t *testing.T) Crew {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("building a network needs root")
	}
	n, err := testbed.Build(t.Context(), testbed.Spec{
		Hosts: []testbed.HostSpec{{Name: "a"}, {Name: "b"}}, Links: []testbed.LinkSpec{{Name: "l", A: "a", B: "b"}},
		Backend: testbed.BackendVeth,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return Crew{Network: n, Logs: t.TempDir()}
}

// A program's output is told apart from that of its predecessor in the same log.
func TestProcess(t *testing.T) {
	c := oneHost(t)
	first, err := c.Start(t.Context(), "a", "p", "sh", "-c", "echo the first; exit 7")
	if err != nil {
		t.Fatal(err)
	}
	<-first.Ended()
	if err := first.Failure(); !strings.Contains(err.Error(), "p on a: exit status 7") || !strings.Contains(err.Error(), "\n  the first") {
		t.Errorf("failure: %v", err)
	}
	if err := first.AwaitOutput(t.Context(), time.Second, "nothing like it"); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("waiting for the output of one that has ended: %v", err)
	}
	second, err := c.Start(t.Context(), "a", "p", "sh", "-c", "hostname; sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if err := second.AwaitOutput(t.Context(), 10*time.Second, "a\n"); err != nil {
		t.Error(err)
	}
	if got, err := second.Output(); err != nil || got != "a\n" {
		t.Errorf("it wrote %q, %v", got, err)
	}
	if m, err := second.Memory(); err != nil || m.Now <= 0 || m.Most < m.Now {
		t.Errorf("memory %+v, %v", m, err)
	}
	if cpu, err := second.CPU(); err != nil || cpu <= 0 || cpu > time.Minute {
		t.Errorf("processor time %v, %v", cpu, err)
	}
	second.Stop()
	if second.Running() || second.Err() == nil {
		t.Errorf("after Stop it runs %v, ended with %v", second.Running(), second.Err())
	}
	if _, err := second.Memory(); err == nil {
		t.Error("one that has ended has memory")
	}
}

func TestTroubleHasTheLastLines(t *testing.T) {
	log := t.TempDir() + "/log"
	p := &Process{Name: "p", Host: "a", Log: log, from: 4}
	if got := p.Trouble(errors.New("it failed")).Error(); got != "p on a: it failed; it wrote nothing to "+log {
		t.Errorf("without a log: %s", got)
	}
	if err := os.WriteFile(log, []byte("old\n"+strings.Repeat("line\n", 10)+"end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "p on a: it failed; the end of " + log + ":" + strings.Repeat("\n  line", 7) + "\n  end"
	if got := p.Trouble(errors.New("it failed")).Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRun(t *testing.T) {
	c := oneHost(t)
	if out, err := c.Run(t.Context(), "b", "hostname"); err != nil || string(out) != "b\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := c.Run(t.Context(), "b", "sh", "-c", "echo because >&2; exit 3"); err == nil || !strings.HasSuffix(err.Error(), "on b: exit status 3: because") {
		t.Errorf("a failure: %v", err)
	}
}

func TestAwait(t *testing.T) {
	never := errors.New("never")
	if err := Await(t.Context(), 0, time.Millisecond, func() error { return never }); !errors.Is(err, never) || !strings.Contains(err.Error(), "after 0s") {
		t.Errorf("%v", err)
	}
	if err := Await(t.Context(), time.Hour, time.Millisecond, func() error { return Hopeless(never) }); !errors.Is(err, never) || err.Error() != "never" {
		t.Errorf("what is hopeless: %v", err)
	}
	calls := 0
	err := Await(t.Context(), time.Hour, 0, func() error {
		if calls++; calls < 3 {
			return never
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// Members have their identities, and the authority's keys are nowhere.
func TestIssue(t *testing.T) {
	c := oneHost(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	if err := c.Issue("a", "b"); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"a", "b"} {
		err := c.Host(host).Do(func() error {
			if left, err := os.ReadDir(authorityDir); !os.IsNotExist(err) {
				t.Errorf("on %s there is %v, %v", host, left, err)
			}
			_, err := os.Stat(FilesIn(IdentityDir(false)).Key)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("on the machine there is %v, %v", left, err)
	}
}
