package openvpn

import (
	"fmt"
	"log/slog"
)

// base holds what both ends need: the program, a folder, a namespace, the interface.
type base struct {
	program   string
	dir       rundir
	namespace *namespace
	iface     string
}

// openBase creates all of it, and makes the paths of files absolute.
func openBase(iface string, mtu int, dir string, files *Files) (b *base, err error) {
	b = &base{iface: iface}
	if b.program, _, err = Find(); err != nil {
		return nil, err
	}
	if *files, err = files.absolute(); err != nil {
		return nil, err
	}
	if b.namespace, err = currentNamespace(); err != nil {
		return nil, err
	}
	if b.dir, err = openRundir(dir); err != nil {
		b.namespace.close()
		return nil, err
	}
	if err := makeTUN(iface, mtu); err != nil {
		b.dir.remove()
		b.namespace.close()
		return nil, err
	}
	return b, nil
}

func (b *base) spec(log *slog.Logger) spec {
	return spec{program: b.program, dir: b.dir, namespace: b.namespace, log: log}
}

// close removes all of it, in the base's namespace, whatever the caller's is.
func (b *base) close() error {
	b.dir.remove()
	defer b.namespace.close()
	if err := b.namespace.do(func() error { return removeTUN(b.iface) }); err != nil {
		return fmt.Errorf("take down %s: %w", b.iface, err)
	}
	return nil
}
