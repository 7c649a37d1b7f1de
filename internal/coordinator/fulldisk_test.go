package coordinator

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

// disk is a small one, which a test can fill.
type disk struct {
	t   *testing.T
	dir string
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t, t.TempDir()}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

// fill leaves no byte.
func (d *disk) fill() {
	d.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "ballast"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if n, err := f.Write(make([]byte, size)); err != nil {
			size = min(size/2, size-n)
		}
	}
}

func (d *disk) empty() {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.dir, "ballast")); err != nil {
		d.t.Fatal(err)
	}
}

// A coordinator whose disk is full starts, reports it, expels members and announces that. It refuses what it
// cannot do, with the reason; and when there is room again, it recovers.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getenv(inNamespace) == "" {
		again(t, syscall.CLONE_NEWNS)
		return
	}
	d := newDisk(t)
	w := newWorldIn(t, d.dir)
	w.run()
	alpha, mallory := w.waypoint("alpha"), w.waypoint("mallory")
	// A certificate was signed and not registered.
	w.crash()
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	gamma := w.host("gamma")
	request, err := collective.ParseRequest(gamma.request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Sign(request, collective.Terms{Name: gamma.name, Validity: collective.MemberValidity + 24*time.Hour}); err != nil {
		t.Fatal(err)
	}
	d.fill()
	w.open()
	registered := func() bool {
		content, err := os.ReadFile(registrar.RegisterFile(w.dir))
		return err == nil && bytes.Contains(content, []byte("gamma"))
	}
	if !slices.ContainsFunc(w.c.Members(), func(m Member) bool { return m.Name == "gamma" }) || registered() {
		t.Errorf("members on a full disk: %+v, in the file: %v", w.c.Members(), registered())
	}
	if problems := strings.Join(w.c.Status().Problems, "\n"); !strings.Contains(problems, "not in the register's file") {
		t.Errorf("the status says %q", problems)
	}
	w.run()
	eventually(t, "status says that the disk is full", 10*time.Second, func() bool {
		return strings.Contains(strings.Join(w.c.Status().Problems, "\n"), "disk")
	})
	for _, h := range []*host{alpha, mallory} {
		h.bus.Close()
		h.welcome.BusServers = w.c.addresses.BusServers()
		h.connect()
	}

	if err := w.c.Expel(t.Context(), "mallory", "floods"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alpha is told", 5*time.Second, func() bool {
		data := alpha.last(enrol.TopicTrust)
		return data != nil && len(fromJSON[enrol.TrustMessage](t, data).Lists) > 0
	})
	eventually(t, "mallory is out", 10*time.Second, func() bool { return !mallory.bus.State().Connected })
	if _, there := alpha.directory().Get("mallory"); there {
		t.Error("mallory is in the directory")
	}

	d.fill() // the reserved space is used now
	if err := w.c.Expel(t.Context(), "alpha", "floods, too"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("expelled on a disk that is quite full: %v", err)
	}
	d.empty()
	eventually(t, "the register is written", time.Minute, registered)
	if problems := strings.Join(w.c.Status().Problems, "\n"); strings.Contains(problems, "not in the register's file") {
		t.Errorf("the status says %q", problems)
	}
	beta := w.member("beta")
	eventually(t, "records are taken again", 20*time.Second, func() bool { return beta.publish(beta.record()) == nil })
	if err := w.c.Expel(t.Context(), "alpha", "floods, too"); err != nil {
		t.Error(err)
	}
	w.reopen() // the expulsion is permanent
	for _, name := range []string{"alpha", "mallory"} {
		if !slices.ContainsFunc(w.c.Members(), func(m Member) bool { return m.Name == name && m.Expelled != nil }) {
			t.Errorf("after a restart %s is not expelled", name)
		}
	}
}
