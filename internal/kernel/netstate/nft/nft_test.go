package nft

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

var (
	testTable = Table{Name: "t"}
	testSet   = Set{Name: "s", Key: []Type{IPv4Addr, InetService}, Data: []Type{Mark}, Timeout: true, Comment: "what it is for"}
)

func open(t *testing.T, ns *netnstest.NS) *Conn {
	t.Helper()
	var c *Conn
	ns.Must(t, func() (err error) { c, err = Open(); return err })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func element(n uint16, mark uint32) Element {
	return Element{
		Key:     append(binary.BigEndian.AppendUint16([]byte{10, 0, 0, 1}, n), 0, 0),
		Data:    binary.NativeEndian.AppendUint32(nil, mark),
		Timeout: time.Minute,
		Comment: "x",
	}
}

func TestTransactions(t *testing.T) {
	ns := netnstest.New(t)
	c := open(t, ns)
	if has, err := c.HasTable(testTable); err != nil || has {
		t.Errorf("before: %v, %v", has, err)
	}
	if _, ok, err := c.SetComment(testTable, testSet.Name); err != nil || ok {
		t.Errorf("before: %v, %v", ok, err)
	}
	if list, err := c.Elements(testTable, testSet); err != nil || len(list) > 0 {
		t.Errorf("before: %v, %v", list, err)
	}
	err := c.Commit("set up", func(tx *Tx) {
		tx.AddTable(testTable)
		tx.AddSet(testTable, testSet)
		tx.AddElements(testTable, testSet, []Element{element(1, 1), element(2, 2)})
	})
	if err != nil {
		t.Fatal(err)
	}
	if comment, ok, err := c.SetComment(testTable, testSet.Name); err != nil || !ok || comment != testSet.Comment {
		t.Errorf("comment %q, %v, %v", comment, ok, err)
	}

	// Several messages fail: the error says what was being done, nothing is done, and the answers
	// are not taken for those of the next transaction.
	for range 3 {
		err = c.Commit("do the impossible", func(tx *Tx) {
			tx.AddElements(testTable, testSet, []Element{element(3, 3)})
			tx.DeleteElements(testTable, testSet, []Element{element(8, 0)})
			tx.DeleteElements(testTable, testSet, []Element{element(9, 0)})
			tx.CreateElements(testTable, testSet, []Element{element(1, 1)})
		})
		if !errors.Is(err, unix.ENOENT) || !strings.HasPrefix(err.Error(), "do the impossible: ") {
			t.Errorf("got %v", err)
		}
		err = c.Commit("renew", func(tx *Tx) {
			e := []Element{element(1, 1)}
			tx.AddElements(testTable, testSet, e)
			tx.DeleteElements(testTable, testSet, e)
			e[0].Timeout = time.Hour
			tx.AddElements(testTable, testSet, e)
		})
		if err != nil {
			t.Error(err)
		}
	}
	list, err := c.Elements(testTable, testSet)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	one, two := list[0], list[1]
	if !slices.Equal(one.Key, element(1, 1).Key) || !slices.Equal(one.Data, element(1, 1).Data) || one.Timeout != time.Hour ||
		one.Expires <= 59*time.Minute || one.Comment != "x" || two.Timeout != time.Minute || two.Expires > time.Minute {
		t.Errorf("%+v", list)
	}
	if found, ok, err := c.Element(testTable, testSet, one.Key); err != nil || !ok || !slices.Equal(found.Data, one.Data) || found.Timeout != time.Hour {
		t.Errorf("looked up: %+v, %v, %v", found, ok, err)
	}
	if found, ok, err := c.Element(testTable, testSet, element(3, 3).Key); err != nil || ok {
		t.Errorf("looked up: %+v, %v, %v", found, ok, err)
	}
	for range 2 {
		if err := c.DeleteTable(testTable); err != nil {
			t.Error(err)
		}
		if has, err := c.HasTable(testTable); err != nil || has {
			t.Errorf("after: %v, %v", has, err)
		}
		if _, ok, err := c.Element(testTable, testSet, one.Key); err != nil || ok {
			t.Errorf("looked up after: %v, %v", ok, err)
		}
	}
}

// TestOwnedTable: another program cannot remove an owned table, and it ends with its Conn.
func TestOwnedTable(t *testing.T) {
	ns := netnstest.New(t)
	owner, other := open(t, ns), open(t, ns)
	owned := Table{Name: testTable.Name, Owned: true}
	for range 2 { // a second time replaces it
		err := owner.Commit("set up", func(tx *Tx) {
			tx.DeleteTable(owned)
			tx.AddTable(owned)
			tx.AddSet(owned, testSet)
			tx.AddElements(owned, testSet, []Element{element(1, 1)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := other.DeleteTable(testTable); !errors.Is(err, unix.EPERM) {
		t.Errorf("another program removes it: %v", err)
	}
	if list, err := other.Elements(testTable, testSet); err != nil || len(list) != 1 {
		t.Errorf("another program reads %v, %v", list, err)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if has, err := other.HasTable(testTable); err != nil || has {
		t.Errorf("left behind: %v, %v", has, err)
	}
}

func TestNamesWhatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives up its rights")
	}
	err := netnstest.New(t).Do(func() error {
		const nobody = 65534
		// Of this thread alone; unix.Setresuid is of all.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			return errno
		}
		c, err := Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Commit("add a table", func(tx *Tx) { tx.AddTable(testTable) })
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}

func TestForwardDrops(t *testing.T) {
	ns := netnstest.New(t)
	c := open(t, ns)
	file := filepath.Join(t.TempDir(), "firewall.nft")
	const firewall = `
table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }
table ip other { chain a { type filter hook forward priority 5; policy accept; }; }
table ip6 six { chain b { type filter hook forward priority 5; policy drop; }; chain c { type filter hook input priority 0; policy drop; }; }
table bridge br { chain d { type filter hook forward priority 0; policy drop; }; }
`
	if err := os.WriteFile(file, []byte(firewall), 0o600); err != nil {
		t.Fatal(err)
	}
	if drops, err := c.ForwardDrops(); err != nil || len(drops) > 0 {
		t.Errorf("%q, %v", drops, err)
	}
	ns.Output(t, "nft", "-f", file)
	drops, err := c.ForwardDrops()
	slices.Sort(drops)
	if err != nil || !slices.Equal(drops, []string{"inet filter forward", "ip6 six b"}) {
		t.Errorf("%q, %v", drops, err)
	}
}

// setElemMessage is one element as Linux 6.18 listed it: 10.0.0.1 . 1 : 0x1, one minute, comment "x".
func setElemMessage() []byte {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_SET_ELEM_LIST_TABLE, "t")
	e.string(unix.NFTA_SET_ELEM_LIST_SET, "s")
	e.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		e.nested(listElem, func() {
			x := element(1, 1)
			e.nested(unix.NFTA_SET_ELEM_KEY, func() { e.bytes(unix.NFTA_DATA_VALUE, x.Key) })
			addition(e, x)
			e.u64(unix.NFTA_SET_ELEM_EXPIRATION, 59000)
		})
	})
	return e.b
}

func TestDecodeElements(t *testing.T) {
	list, err := decodeElements(setElemMessage(), nil)
	if err != nil || len(list) != 1 || list[0].Expires != 59*time.Second || list[0].Comment != "x" || !slices.Equal(list[0].Key, element(1, 1).Key) {
		t.Errorf("%+v, %v", list, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(setElemMessage())
	set, _ := hex.DecodeString("01000000" + "0600010074000000" + "0e000d00" + "070877686174206973006600")
	f.Add(set)
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeElements(b, nil)
		for _, e := range list {
			if err == nil && (e.Expires < 0 || e.Timeout < 0) {
				t.Errorf("%x: %+v", b, e)
			}
		}
		for _, e := range ranges(list) {
			if len(e.Last) != len(e.Key) && err == nil && len(list) == 1 {
				t.Errorf("%x: a range %+v", b, e)
			}
		}
		_ = decodeSetComment(b)
		if name, ok := decodeForwardDrop(b); ok && name == "" {
			t.Errorf("%x: a chain without a name", b)
		}
		_ = userString(b, userSetComment)
	})
}

func TestLargeTransaction(t *testing.T) {
	c := open(t, netnstest.New(t))
	elements := make([]Element, 60_000) // several messages of the largest size
	for i := range elements {
		elements[i] = element(uint16(i), uint32(i))
	}
	err := c.Commit("fill", func(tx *Tx) {
		tx.AddTable(testTable)
		tx.AddSet(testTable, testSet)
		tx.AddElements(testTable, testSet, elements)
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Elements(testTable, testSet)
	if err != nil || len(list) != len(elements) {
		t.Errorf("%d elements of %d, %v", len(list), len(elements), err)
	}
}
