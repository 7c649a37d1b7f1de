package register

import (
	"maps"
	"slices"

	"github.com/detour-collective/dcol/internal/collective"
)

// roster holds the members by name, and their names by key. A key belongs to one name only, also that of an expelled host
// whose name another host has now.
type roster struct {
	named map[string]*Member
	names map[collective.PublicKey]string
}

func newRoster() roster {
	return roster{named: map[string]*Member{}, names: map[collective.PublicKey]string{}}
}

// add adds a member. Its name must be free.
func (r *roster) add(m *Member) {
	r.named[m.Name] = m
	for _, key := range m.keys() {
		r.names[key] = m.Name
	}
}

// remove removes the member with a name and returns it, or nil if there is none.
func (r *roster) remove(name string) *Member {
	m := r.named[name]
	if m == nil {
		return nil
	}
	delete(r.named, name)
	for _, key := range m.keys() {
		if r.names[key] == name {
			delete(r.names, key)
		}
	}
	return m
}

// holder returns the member with a key, or nil. If the key is that of an expelled host whose name another host has now,
// it returns the expelled one.
func (r *roster) holder(key collective.PublicKey) *Member {
	m := r.named[r.names[key]]
	if m == nil || m.Key == key {
		return m
	}
	return m.former(slices.IndexFunc(m.Former, func(f Former) bool { return f.Key == key }))
}

// sorted returns all members, sorted by name.
func (r *roster) sorted() (out []*Member) {
	for _, name := range slices.Sorted(maps.Keys(r.named)) {
		out = append(out, r.named[name])
	}
	return out
}
