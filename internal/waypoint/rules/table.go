package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// Table is the table in the kernel. Not for concurrent use.
type Table struct {
	conn   *nft.Conn
	schema *schema
}

// Open opens the table of the calling thread's network namespace, which need not exist yet.
func Open(l Limits) (*Table, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	return &Table{conn: conn, schema: newSchema(l)}, nil
}

// Close ends the connection to the kernel. The table stays and works.
func (t *Table) Close() error { return t.conn.Close() }

// Present implements Kernel.
func (t *Table) Present() (bool, error) {
	return t.conn.HasTable(table)
}

// Load implements Kernel. Of a table that another version wrote it reads what it understands.
func (t *Table) Load() (State, bool, error) {
	comment, ok, err := t.conn.SetComment(table, t.schema.members.Name)
	if err != nil || !ok {
		return State{}, false, err
	}
	var s State
	for _, f := range []family{t.schema.four, t.schema.six} {
		mappings, err := t.loadMappings(f)
		if err != nil {
			return State{}, false, err
		}
		s.Mappings = append(s.Mappings, mappings...)
	}
	elements, err := t.conn.Elements(table, t.schema.members)
	if err != nil {
		return State{}, false, err
	}
	for _, e := range elements {
		if m, ok := decodeMember(e); ok {
			s.Members = append(s.Members, m)
		}
	}
	if s.Guarded4, err = t.loadGuarded(t.schema.four); err != nil {
		return State{}, false, err
	}
	if s.Guarded6, err = t.loadGuarded(t.schema.six); err != nil {
		return State{}, false, err
	}
	return s, comment == t.schema.members.Comment, nil
}

func (t *Table) loadMappings(f family) ([]Mapping, error) {
	marks, err := t.conn.Elements(table, f.marks)
	if err != nil {
		return nil, err
	}
	members := make(map[Key]MemberID, len(marks))
	for _, e := range marks {
		key, ok := decodeKey(e.Key, f)
		if member, ours := decodeMark(e.Data); ok && ours {
			members[key] = member
		}
	}
	servers, err := t.conn.Elements(table, f.servers)
	if err != nil {
		return nil, err
	}
	mappings := make([]Mapping, 0, len(servers))
	for _, e := range servers {
		key, ok := decodeKey(e.Key, f)
		server, serverOK := decodeKey(e.Data, f)
		member, known := members[key]
		if ok && serverOK && known && e.Expires > 0 {
			mappings = append(mappings, Mapping{Client: key.Client, Port: key.Port,
				Server: netip.AddrPortFrom(server.Client, server.Port), Member: member, Left: e.Expires})
		}
	}
	return mappings, nil
}

func (t *Table) loadGuarded(f family) ([]string, error) {
	elements, err := t.conn.Elements(table, f.guarded)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range elements {
		names = append(names, strings.TrimRight(string(e.Key), "\x00"))
	}
	return names, nil
}

// Install implements Kernel.
func (t *Table) Install(s State) error {
	return t.conn.Commit("install nftables table "+table.Name, func(tx *nft.Tx) {
		tx.DeleteTable(table)
		t.schema.emit(tx)
		t.addMappings(tx, s.Mappings)
		tx.AddElements(table, t.schema.members, memberElements(s.Members))
		tx.AddElements(table, t.schema.four.guarded, interfaceElements(s.Guarded4))
		tx.AddElements(table, t.schema.six.guarded, interfaceElements(s.Guarded6))
	})
}

// Commit implements Kernel.
func (t *Table) Commit(ch Change) error {
	doing := fmt.Sprintf("change nftables table %s (%d mappings added, %d renewed, %d removed)",
		table.Name, len(ch.Add), len(ch.Renew), len(ch.Remove))
	return t.conn.Commit(doing, func(tx *nft.Tx) {
		// Before Linux 6.12 an element's timeout cannot be changed: it is deleted and added anew.
		// Deleting needs it to be there, and it may expire at any moment: so it is added first.
		t.addMappings(tx, ch.Remove)
		t.addMappings(tx, ch.Renew)
		t.deleteMappings(tx, ch.Remove)
		t.deleteMappings(tx, ch.Renew)
		t.addMappings(tx, ch.Renew)
		for _, e := range t.mappingElements(ch.Add) {
			tx.CreateElements(table, e.set, e.elements)
		}
		if len(ch.Members) > 0 {
			members := memberElements(ch.Members)
			tx.AddElements(table, t.schema.members, members)
			tx.DeleteElements(table, t.schema.members, members)
			tx.AddElements(table, t.schema.members, members)
		}
	})
}

func (t *Table) addMappings(tx *nft.Tx, mappings []Mapping) {
	for _, e := range t.mappingElements(mappings) {
		tx.AddElements(table, e.set, e.elements)
	}
}

func (t *Table) deleteMappings(tx *nft.Tx, mappings []Mapping) {
	for _, e := range t.mappingElements(mappings) {
		tx.DeleteElements(table, e.set, e.elements)
	}
}

type setElements struct {
	set      nft.Set
	elements []nft.Element
}

func (t *Table) mappingElements(mappings []Mapping) [4]setElements {
	four, six := t.schema.four, t.schema.six
	out := [4]setElements{{set: four.servers}, {set: four.marks}, {set: six.servers}, {set: six.marks}}
	for _, m := range mappings {
		servers, marks := &out[0], &out[1]
		if m.Client.Is6() {
			servers, marks = &out[2], &out[3]
		}
		// Without a timeout an element would live for ever.
		e := nft.Element{Key: encodeKey(m.Client, m.Port), Timeout: max(m.Left, time.Millisecond)}
		e.Data = encodeKey(m.Server.Addr(), m.Server.Port())
		servers.elements = append(servers.elements, e)
		e.Data = binary.NativeEndian.AppendUint32(nil, m.Member.Mark())
		marks.elements = append(marks.elements, e)
	}
	return out
}

// encodeKey makes the concatenation of an address and a port; parts are multiples of 4 bytes.
func encodeKey(addr netip.Addr, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(addr.AsSlice(), port), 0, 0)
}

func decodeKey(b []byte, f family) (Key, bool) {
	if len(b) != int(f.addr.Size())+4 {
		return Key{}, false
	}
	addr, ok := netip.AddrFromSlice(b[:f.addr.Size()])
	return Key{addr, binary.BigEndian.Uint16(b[f.addr.Size():])}, ok
}

func decodeMark(b []byte) (MemberID, bool) {
	if len(b) != 4 {
		return 0, false
	}
	return MemberOfMark(binary.NativeEndian.Uint32(b))
}

func memberElements(members []Member) []nft.Element {
	elements := make([]nft.Element, len(members))
	for i, m := range members {
		elements[i] = nft.Element{
			Key:     binary.NativeEndian.AppendUint32(nil, m.ID.Mark()),
			Comment: m.Name + " " + m.Serial,
		}
	}
	return elements
}

func decodeMember(e nft.Element) (Member, bool) {
	id, ok := decodeMark(e.Key)
	name, serial, found := strings.Cut(e.Comment, " ")
	return Member{ID: id, Name: name, Serial: serial}, ok && found
}

func interfaceElements(names []string) []nft.Element {
	elements := make([]nft.Element, len(names))
	for i, name := range names {
		key := make([]byte, unix.IFNAMSIZ)
		copy(key, name)
		elements[i] = nft.Element{Key: key}
	}
	return elements
}

// Delete removes the table from the calling thread's network namespace, if it is there.
func Delete() error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(conn.DeleteTable(table), conn.Close())
}
