package rules

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Table is the table in the kernel. It is not safe for concurrent use.
type Table struct {
	conn     *nft.Conn
	removals *nft.Removals
	schema   *schema
	// marking has the chains that are known to exist, because we have added them.
	marking map[markChain]bool
}

// Open opens the table of the calling thread's network namespace, which need not exist yet.
func Open(o Options) (*Table, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	removals, err := conn.WatchRemovals(table)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Table{conn: conn, removals: removals, schema: newSchema(o), marking: make(map[markChain]bool)}, nil
}

// Close ends the connection to the kernel. The table stays and works.
func (t *Table) Close() error { return errors.Join(t.removals.Close(), t.conn.Close()) }

// Removed implements Kernel.
func (t *Table) Removed() <-chan struct{} { return t.removals.C() }

// Present implements Kernel.
func (t *Table) Present() (bool, error) {
	intact, err := t.removals.Intact(t.conn)
	if err != nil || !intact {
		return false, err
	}
	return t.namesServers()
}

// namesServers reports whether the rule for in-band connections is as we wrote it. nft changes it when somebody loads a
// listing.
func (t *Table) namesServers() (bool, error) {
	if t.schema.options.InBand == InBandOff {
		return true, nil
	}
	return t.conn.HasOptionLoad(table, inBandChain, optionKind, optionLength)
}

// Install implements Kernel.
func (t *Table) Install(s State) error {
	clear(t.marking)
	var chains []markChain
	err := t.conn.Commit("install nftables table "+table.Name, func(tx *nft.Tx) {
		tx.DeleteTable(table)
		t.schema.emit(tx)
		chains = t.addMarkChains(tx, s.Mappings, s.Admissions)
		add(tx, t.mappingElements(s.Mappings))
		add(tx, t.admissionElements(s.Admissions))
		add(tx, t.forbiddenElements(s.Forbidden))
		tx.AddElements(table, t.schema.members, memberElements(s.Members))
		tx.AddElements(table, t.schema.ports, portElements(s.ForbiddenPorts))
		tx.AddElements(table, t.schema.tunnelIfs, interfaceElements(s.TunnelInterfaces))
		tx.AddElements(table, t.schema.four.guarded, interfaceElements(s.Guarded4))
		tx.AddElements(table, t.schema.six.guarded, interfaceElements(s.Guarded6))
		tx.AddElements(table, t.schema.closed, t.closedElements(s.Closed))
		tx.AddElements(table, t.schema.stopped, t.stoppedElements(s.Stopped))
		if t.schema.options.Converter > 0 {
			tx.AddElements(table, t.schema.awaited, t.awaitedElements(s.Awaited, s.Await))
		}
		if t.schema.options.Quota > 0 {
			tx.ReplaceRules(table, t.schema.quota(s.Used).nft())
		}
	})
	t.hasMarkChains(chains, err)
	return err
}

// hasMarkChains records added chains. After an error, no chain is known to exist.
func (t *Table) hasMarkChains(added []markChain, err error) {
	if err != nil {
		clear(t.marking)
		return
	}
	for _, c := range added {
		t.marking[c] = true
	}
}

// Commit implements Kernel.
func (t *Table) Commit(ch Change) error {
	doing := fmt.Sprintf("change nftables table %s (%d mappings added, %d renewed, %d removed; %d addresses admitted, %d revoked)",
		table.Name, len(ch.Add), len(ch.Renew), len(ch.Remove), len(ch.Admit), len(ch.Revoke))
	var chains []markChain
	err := t.conn.Commit(doing, func(tx *nft.Tx) {
		// remove adds elements first, and these need their chains.
		chains = t.addMarkChains(tx, slices.Concat(ch.Add, ch.Renew, ch.Remove), slices.Concat(ch.Admit, ch.Revoke))
		remove(tx, t.mappingElements(ch.Remove))
		remove(tx, t.admissionElements(ch.Revoke))
		put(tx, t.mappingElements(ch.Renew))
		put(tx, t.admissionElements(ch.Admit))
		for _, e := range t.mappingElements(ch.Add) {
			tx.CreateElements(table, e.set, e.elements)
		}
		put(tx, []setElements{{t.schema.members, memberElements(ch.Members)}})
		if t.schema.options.Converter > 0 {
			remove(tx, []setElements{{t.schema.awaited, t.awaitedElements(ch.Unawait, time.Second)}})
		}
	})
	t.hasMarkChains(chains, err)
	return err
}

// SetForbidden implements Kernel.
func (t *Table) SetForbidden(ranges []egress.Range) error {
	return t.conn.Commit("replace the servers that nftables table "+table.Name+" forbids", func(tx *nft.Tx) {
		for _, e := range t.forbiddenElements(ranges) {
			tx.FlushSet(table, e.set)
			tx.AddElements(table, e.set, e.elements)
		}
	})
}

// SetTunnelInterfaces implements Kernel.
func (t *Table) SetTunnelInterfaces(names []string) error {
	return t.conn.Commit("replace the tunnel interfaces of nftables table "+table.Name, func(tx *nft.Tx) {
		tx.FlushSet(table, t.schema.tunnelIfs)
		tx.AddElements(table, t.schema.tunnelIfs, interfaceElements(names))
	})
}

// SetClosed implements Kernel.
func (t *Table) SetClosed(closed bool) error {
	return t.conn.Commit("open or close nftables table "+table.Name, func(tx *nft.Tx) {
		tx.FlushSet(table, t.schema.closed)
		tx.AddElements(table, t.schema.closed, t.closedElements(closed))
	})
}

// SetStopped implements Kernel.
func (t *Table) SetStopped(members []MemberID) error {
	return t.conn.Commit("replace the members that nftables table "+table.Name+" stops", func(tx *nft.Tx) {
		tx.FlushSet(table, t.schema.stopped)
		tx.AddElements(table, t.schema.stopped, t.stoppedElements(members))
	})
}

// SetUsed implements Kernel.
func (t *Table) SetUsed(used uint64) error {
	return t.conn.Commit("set what is used of the quota in nftables table "+table.Name, func(tx *nft.Tx) {
		tx.ReplaceRules(table, t.schema.quota(used).nft())
	})
}

// Used implements Kernel.
func (t *Table) Used() (uint64, error) {
	used, ok, err := t.conn.QuotaUsed(table, quotaChain)
	if err == nil && !ok {
		err = fmt.Errorf("nftables table %s has no quota: %w", table.Name, unix.ENOENT)
	}
	return used, err
}

// setElements are elements with the set to which they belong.
type setElements struct {
	set      nft.Set
	elements []nft.Element
}

func add(tx *nft.Tx, list []setElements) {
	for _, e := range list {
		tx.AddElements(table, e.set, e.elements)
	}
}

// remove deletes elements, whether or not they exist. Deleting an element that does not exist is an error,
// and elements may expire at any moment, so remove adds them first.
func remove(tx *nft.Tx, list []setElements) {
	add(tx, list)
	for _, e := range list {
		tx.DeleteElements(table, e.set, e.elements)
	}
}

// put adds elements, or renews the timeouts of existing ones. Before Linux 6.12, an element's timeout
// cannot be changed, so put deletes it and adds it again.
func put(tx *nft.Tx, list []setElements) {
	remove(tx, list)
	add(tx, list)
}

// Delete removes the table from the calling thread's network namespace, if it is there.
func Delete() error { return nft.RemoveTable(table) }
