package membership

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/enrol"
)

// The files in Config.Dir.
const (
	enrolmentFile = "enrolment.json"
	directoryFile = "directory"
)

// Enrolment is what the coordinators gave this host besides its certificate: how to reach them. It is no
// secret, but of no use to anybody else.
type Enrolment struct {
	BusJWT       string           `json:"bus-jwt"`
	BusServers   []enrol.Endpoint `json:"bus-servers"`
	Coordinators []enrol.Endpoint `json:"coordinators"`
}

// EnrolmentOf is the part of a welcome that is kept.
func EnrolmentOf(w enrol.Welcome) Enrolment {
	return Enrolment{BusJWT: w.BusJWT, BusServers: w.BusServers, Coordinators: w.Coordinators}
}

// Save writes it to a member's directory, which is made if there is none.
func (e Enrolment) Save(dir string) error {
	data, err := json.MarshalIndent(e, "", "\t")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = durable.Replace(filepath.Join(dir, enrolmentFile), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep what the coordinators said: %w", err)
	}
	return nil
}

// LoadEnrolment reads what Save wrote; its zero value if there is none. One that cannot be read is the
// same with an error: the next renewal brings another.
func LoadEnrolment(dir string) (Enrolment, error) {
	path := filepath.Join(dir, enrolmentFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Enrolment{}, nil
	}
	var e Enrolment
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	for _, list := range [][]enrol.Endpoint{e.BusServers, e.Coordinators} {
		for i := 0; err == nil && i < len(list); i++ {
			err = list[i].Check()
		}
	}
	if err != nil {
		return Enrolment{}, fmt.Errorf("%s cannot be read, a new one is asked for: %w", path, err)
	}
	return e, nil
}
