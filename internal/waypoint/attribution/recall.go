package attribution

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Grant identifies a mapping or admission that the kernel still has after an agent's end.
type Grant struct {
	Member string
	Kind   string     // empty: a mapping
	Client netip.Addr // its address in the tunnel, if it has one
	Port   uint16     // of a mapping
}

// Recall returns the sessions in which grants were last requested, from the last two files of the log at path. With
// full files it takes seconds.
func Recall(path string) (map[Grant]*Session, error) {
	var files []File
	for i := range 2 {
		if _, err := os.Stat(aside(path, i)); !errors.Is(err, fs.ErrNotExist) {
			files = append(files, OpenFile(aside(path, i)))
		}
	}
	grants := make(map[Grant]*Session)
	shown := make(map[wire.SessionID]*Session)
	var of *line
	ended := fmt.Appendf(nil, `"event":%q`, FlowClosed)
	err := eachText(files, func(t *text) {
		if bytes.Contains(t.bytes, ended) { // half of all lines are not needed
			return
		}
		l := parse(t.bytes)
		if l == nil {
			return
		}
		switch l.Event {
		case fileBegan:
			began := *l
			of = &began
		case sessionShown:
			if of != nil {
				shown[l.Session] = l.proof(of)
			}
		case MappingGranted, AdmissionGranted, FlowOpened, FlowFound: // flows show later requests
			if s := shown[l.Session]; s != nil {
				grants[l.grant()] = s
			}
		}
	})
	return grants, err
}

func (l *line) grant() Grant {
	g := Grant{Member: l.Member, Kind: l.Kind, Client: l.Client}
	if l.Tunnel.IsValid() {
		g.Client = l.Tunnel
	}
	if l.Kind == "" {
		g.Port = l.Port
	}
	return g
}
