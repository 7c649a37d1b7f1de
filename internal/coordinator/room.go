package coordinator

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/durable"
)

// An expulsion must not fail because the disk is full. It needs some kilobytes: the register's entry, revocation
// lists, the bus's keys, a change in the directory's store. Room for many is set aside.
const (
	reserved = 2 << 20
	lowRoom  = 1 << 20 // that little is left to a disk that is full, or soon will be
)

// keepReserve sets the room aside, again if it was used and there is more by now.
func (c *Coordinator) keepReserve() {
	if err := c.reserve.Keep(); err != nil {
		c.config.Log.Warn("coordinator: no room can be set aside for expulsions on a full disk", "err", err)
	}
}

// makeRoom uses what was set aside, if nothing else is left.
func (c *Coordinator) makeRoom() {
	room, err := durable.Room(c.config.Dir)
	if err == nil && room >= lowRoom {
		return
	}
	if err == nil {
		err = c.reserve.Free()
	}
	if err != nil {
		c.config.Log.Warn("coordinator: there may be no room for an expulsion", "err", err)
	}
}

// roomProblem says that the disk is full; empty: it is not.
func (c *Coordinator) roomProblem() string {
	room, err := durable.Room(c.config.Dir)
	if err != nil {
		return err.Error()
	}
	if room >= lowRoom {
		return ""
	}
	return fmt.Sprintf("the disk with %s is full (%d KiB are left): nobody can be invited, join or renew, and changes of records are lost; make room. "+
		"To expel members still works, with room that was set aside", c.config.Dir, room>>10)
}
