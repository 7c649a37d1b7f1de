package cc

import (
	"errors"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Beside a program and an algorithm of others, congestion controls are chosen, and their program goes on.
func TestChooseBesideOthers(t *testing.T) {
	theirs, ours := registered(t, LIA), registered(t, LIA)
	ns := netnstest.New(t)
	foreign := cgrouptest.NewForeign(t, ns, cgrouptest.ForeignSettings{})
	ns.Must(t, func() error {
		chooser, err := chooseOrSkip(t, Rule{Name: ours.Name()})
		if err != nil {
			return err
		}
		defer chooser.Close()
		client, server, err := pair(t, "127.0.0.1", false)
		if err != nil {
			return err
		}
		if got := congestionOf(t, client); got != ours.Name() || got == theirs.Name() {
			t.Errorf("the connection has %s", got)
		}
		var written, found uint64
		for range 10 {
			before := written
			if _, err := client.Write([]byte("x")); err != nil {
				return err
			}
			if _, err := server.Read(make([]byte, 1)); err != nil {
				return err
			}
			if written, found = foreign.Segments(t); written == before {
				t.Errorf("the other program's option is not in segment %d", written)
			}
		}
		if found == 0 {
			t.Error("the other program reads no option")
		}
		return nil
	})
}

// A cgroup whose program allows no other is a reason of its own.
func TestChooseInOccupiedCgroup(t *testing.T) {
	cgroup := cgrouptest.Occupied(t)
	netnstest.New(t).Must(t, func() error {
		c, err := Choose([]Rule{{Name: "reno", Cgroup: cgroup}})
		if err == nil {
			return c.Close()
		}
		if e, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(e.Fix, "multi") {
			t.Errorf("got %v", err)
		}
		return nil
	})
}
