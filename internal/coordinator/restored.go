package coordinator

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// An operator may put back an older copy of the coordinator's directory. What this host knows as a member is newer
// then: revocation lists, which are taken from there, as members would not take a list with an old number; and the
// directory, which gets a new epoch, as members pass over changes that they take for known. Members that joined
// since are in no record; they show their certificates when they renew.

const restoredWords = "an older copy of the coordinator's directory was put back: revocations since then were taken from this host's own lists, " +
	"invitations that were open are void, and members that joined since are taken in again as they renew, within a day or two. " +
	"Invite nobody before then, as names and subnets of theirs may be given twice; expel again who should be"

// takeOwnLists brings the authority's list up to what this host knows as a member, and says whether it was behind.
func (c *Coordinator) takeOwnLists() (behind bool, err error) {
	own := c.config.Identity.Trust()
	at, err := c.ca.Trust()
	if err != nil || !own.NewerList(at, c.ca.Key()) {
		return false, err
	}
	if _, err := c.ca.TakeTrust(nil, own.Lists()); err != nil {
		return true, fmt.Errorf("an older copy of the coordinator's directory was put back, and the later revocation lists in this host's own files cannot be taken: %w", err)
	}
	return true, nil
}

// readmit makes a member again of who shows a certificate that counts, if the register does not know it. The caller
// holds enrolling.
func (c *Coordinator) readmit(m collective.Member) error {
	if m.Issuer.Key != c.ca.Key() || c.register.members[m.Name] != nil {
		return nil
	}
	if holder, known := c.register.keys[publicKey(m.Key)]; known {
		return enrol.Refuse(enrol.KeyTaken, "this key is that of the member %s", holder)
	}
	again := &member{Name: m.Name, Key: publicKey(m.Key), Subnet: m.Subnet, Joined: m.NotBefore.UTC(), Until: m.NotAfter.UTC()}
	if err := c.save(entry{Member: again}); err != nil {
		return err
	}
	c.config.Log.Warn("coordinator: a member was not in the register as its certificate is", "member", m.Name)
	return nil
}

// errRestored ends the work with a store that is older than what this host has heard.
var errRestored = errors.New("the directory's store is older than what this host knows of it")

// compareAsked says whether this host's own agent knows more of the directory than its store. Other members are not
// believed in that.
func (c *Coordinator) compareAsked(gate *gatekeeper, from string, data []byte) {
	ask, err := directory.DecodeAsk(data)
	head := gate.journal.Head()
	if err == nil && from == c.config.Identity.Name() && ask.Epoch == head.Epoch && ask.After > head.Head {
		poke(gate.restored)
	}
}
