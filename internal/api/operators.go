package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/sockinfo"
)

// AllowGroup lets members of a group use the socket at path, besides its owner. It sets an access control list, because
// without CAP_CHOWN the owner of a file cannot give it to a group.
func AllowGroup(path, group string) error {
	found, err := user.LookupGroup(group)
	if err != nil {
		return fmt.Errorf("find the group %s: %w", group, err)
	}
	id, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return fmt.Errorf("the group %s has the number %q", group, found.Gid)
	}
	if err := unix.Setxattr(path, "system.posix_acl_access", accessList(uint32(id)), 0); err != nil {
		return fmt.Errorf("let the group %s use %s: %w", group, path, err)
	}
	return nil
}

// accessList returns an access control list as the kernel has it (linux/posix_acl_xattr.h): the owner and the group may
// read and write, and nobody else may do anything.
func accessList(group uint32) []byte {
	const none, readWrite, nobody = 0, 6, 1<<32 - 1
	list := binary.LittleEndian.AppendUint32(nil, 2) // the version
	for _, entry := range []struct {
		tag, may uint16
		id       uint32
	}{
		{0x01, readWrite, nobody}, // the owner
		{0x04, none, nobody},      // the owner's group
		{0x08, readWrite, group},
		{0x10, readWrite, nobody}, // the most that a group may do
		{0x20, none, nobody},      // others
	} {
		list = binary.LittleEndian.AppendUint16(list, entry.tag)
		list = binary.LittleEndian.AppendUint16(list, entry.may)
		list = binary.LittleEndian.AppendUint32(list, entry.id)
	}
	return list
}

type userKey struct{}

// withUser stores in the context which user has connected.
func withUser(ctx context.Context, c net.Conn) context.Context {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	peer, err := sockinfo.Peer(conn)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, userKey{}, int(peer.Uid))
}

// ByOwner reports whether a request to Serve comes from root or the agent's own user, and not from an operator.
func ByOwner(ctx context.Context) bool {
	uid, known := ctx.Value(userKey{}).(int)
	return known && (uid == 0 || uid == os.Geteuid())
}

// owned rejects requests of users other than root and the agent's own user.
func owned(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !ByOwner(r.Context()) {
			answer(w, nil, errors.New("only root may do this: run it as root (operators may only look, and choose waypoints)"))
			return
		}
		next(w, r)
	}
}
