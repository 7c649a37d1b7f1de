package nft

import "errors"

// Kept is a table that its process restores after another program has removed the table or its rules, as a firewall
// does that flushes all tables when it is reloaded. It is not safe for concurrent use.
type Kept struct {
	Table    Table
	conn     *Conn
	removals *Removals
	build    func(*Tx)
}

// Keep installs a table in the calling thread's network namespace. It replaces a table that a crash has left. build
// adds the table's present content, and is called each time the table is installed.
func Keep(t Table, build func(*Tx)) (*Kept, error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	k := &Kept{Table: t, conn: conn, build: build}
	if k.removals, err = conn.WatchRemovals(t); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := k.Install(); err != nil {
		return nil, errors.Join(err, k.Release())
	}
	return k, nil
}

// Install replaces the table by the result of build, atomically.
func (k *Kept) Install() error {
	return k.conn.Commit("install nftables table "+k.Table.Name, func(tx *Tx) {
		tx.DeleteTable(k.Table)
		tx.AddTable(k.Table)
		k.build(tx)
	})
}

// Commit changes the installed table, like Conn.Commit. build must add the same content from then on.
func (k *Kept) Commit(doing string, change func(*Tx)) error { return k.conn.Commit(doing, change) }

// Removed returns a channel that delivers a value when Check should be called, because another program has removed the
// table or some of its rules. See Removals.C.
func (k *Kept) Removed() <-chan struct{} { return k.removals.C() }

// Intact reports whether the table, all its rules, and the elements of its sets exist.
func (k *Kept) Intact() (bool, error) { return k.removals.Intact(k.conn) }

// Check restores the table if another program has removed it or some of its rules.
func (k *Kept) Check() (restored bool, err error) {
	intact, err := k.Intact()
	if err != nil || intact {
		return false, err
	}
	return true, k.Install()
}

// Close removes the table.
func (k *Kept) Close() error { return errors.Join(k.conn.DeleteTable(k.Table), k.Release()) }

// Release leaves the table as it is.
func (k *Kept) Release() error { return errors.Join(k.removals.Close(), k.conn.Close()) }

// RemoveTable removes a table from the calling thread's network namespace, if it exists.
func RemoveTable(t Table) error {
	conn, err := Open()
	if err != nil {
		return err
	}
	return errors.Join(conn.DeleteTable(t), conn.Close())
}
