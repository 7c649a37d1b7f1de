package netstate

import (
	"testing"
)

func TestInterfaces(t *testing.T) {
	_, host := twoHosts(t)
	var a *Addresses
	host.Must(t, func() (err error) { a, err = OpenAddresses(); return err })
	defer a.Close()
	find := func(name string) (found Interface, ok bool) {
		t.Helper()
		list, err := a.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			if i.Name == name {
				return i, true
			}
		}
		return Interface{}, false
	}
	if lo, ok := find("lo"); !ok || !lo.Loopback {
		t.Errorf("lo: %+v, %v", lo, ok)
	}
	host.Output(t, "ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
	if d, ok := find("d0"); ok {
		t.Errorf("one that is down: %+v", d)
	}
	host.Output(t, "ip", "link", "set", "d0", "up")
	if d, ok := find("d0"); !ok || d.Loopback || d.Index == 0 {
		t.Errorf("d0: %+v, %v", d, ok)
	}
}
