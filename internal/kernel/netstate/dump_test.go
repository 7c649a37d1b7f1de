package netstate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// What the kernel lists in several messages may change between them; that is no error of ours.
func TestListsWhileTheyChange(t *testing.T) {
	ns, _ := twoHosts(t)
	const addresses = 1000 // more than one message holds
	var batch strings.Builder
	for i := range addresses {
		fmt.Fprintf(&batch, "address add 10.2.%d.%d/16 dev eth0\n", i/200, 1+i%200)
	}
	ns.Output(t, "sh", "-c", "ip -batch - <<'END'\n"+batch.String()+"END")
	var handle *Addresses
	ns.Must(t, func() (err error) { handle, err = OpenAddresses(); return err })
	defer handle.Close()

	ns.Output(t, "ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1")
	stop, done := make(chan struct{}), make(chan error)
	go func() { done <- ns.Do(func() error { return flap("other0", stop) }) }()
	defer func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for range 200 {
		if own, err := handle.Own(); err != nil || len(own) < addresses {
			t.Fatalf("%d addresses, %v", len(own), err)
		}
		if _, err := handle.Interfaces(); err != nil {
			t.Fatal(err)
		}
	}
}

// flap gives an interface an address and takes it away, again and again.
func flap(iface string, stop <-chan struct{}) error {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr("10.3.0.1/24")
	for err == nil {
		select {
		case <-stop:
			return nil
		default:
		}
		if err = netlink.AddrAdd(link, addr); err == nil {
			err = netlink.AddrDel(link, addr)
		}
		time.Sleep(time.Millisecond)
	}
	return err
}
