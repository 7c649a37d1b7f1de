package nft

import "errors"

// Kept is a table of one process, which the process can restore after another program has removed it, such as a
// reloaded firewall that flushes all tables. It is not safe for concurrent use.
type Kept struct {
	Table Table
	conn  *Conn
	build func(*Tx)
}

// Keep installs a table in the calling thread's network namespace, replacing one that a crash has left. build adds
// the table's present content. It is called again whenever the table is installed again.
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

// Install replaces the table atomically with what build adds now.
func (k *Kept) Install() error {
	return k.conn.Commit("install nftables table "+k.Table.Name, func(tx *Tx) {
		tx.DeleteTable(k.Table)
		tx.AddTable(k.Table)
		k.build(tx)
	})
}

// Commit changes the installed table, like Conn.Commit. build must add the same content from then on.
func (k *Kept) Commit(doing string, change func(*Tx)) error { return k.conn.Commit(doing, change) }

// Check restores the table if another program has removed it.
func (k *Kept) Check() (restored bool, err error) {
	there, err := k.conn.HasTable(k.Table)
	if err != nil || there {
		return false, err
	}
	return true, k.Install()
}

// Close removes the table.
func (k *Kept) Close() error { return errors.Join(k.conn.DeleteTable(k.Table), k.conn.Close()) }

// Release leaves the table as it is.
func (k *Kept) Release() error { return k.conn.Close() }

// RemoveTable removes a table from the calling thread's network namespace, if it exists.
func RemoveTable(t Table) error {
	conn, err := Open()
	if err != nil {
		return err
	}
	return errors.Join(conn.DeleteTable(t), conn.Close())
}
