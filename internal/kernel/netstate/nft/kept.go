package nft

import "errors"

// Kept is a table that one process has while it runs, and that comes back when somebody flushes all
// tables, as a reloaded firewall does. Not for concurrent use.
type Kept struct {
	Table Table
	conn  *Conn
	build func(*Tx)
}

// Keep installs a table in the calling thread's network namespace, in place of one that a crash has
// left. build adds what is in the table, as it is to be at the time: it is called again whenever the
// table is installed anew.
func Keep(t Table, build func(*Tx)) (*Kept, error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	k := &Kept{Table: t, conn: conn, build: build}
	if err := k.Install(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return k, nil
}

// Install puts a table as build makes it now in place of what there is, atomically.
func (k *Kept) Install() error {
	return k.conn.Commit("install nftables table "+k.Table.Name, func(tx *Tx) {
		tx.DeleteTable(k.Table)
		tx.AddTable(k.Table)
		k.build(tx)
	})
}

// Commit changes the table as it is, which build has to know of; as Conn.Commit.
func (k *Kept) Commit(doing string, change func(*Tx)) error { return k.conn.Commit(doing, change) }

// Check puts the table back if somebody has removed it.
func (k *Kept) Check() (restored bool, err error) {
	there, err := k.conn.HasTable(k.Table)
	if err != nil || there {
		return false, err
	}
	return true, k.Install()
}

// Close removes the table.
func (k *Kept) Close() error { return errors.Join(k.conn.DeleteTable(k.Table), k.conn.Close()) }

// RemoveTable removes a table from the calling thread's network namespace, if it is there.
func RemoveTable(t Table) error {
	conn, err := Open()
	if err != nil {
		return err
	}
	return errors.Join(conn.DeleteTable(t), conn.Close())
}
