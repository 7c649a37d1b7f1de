package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// mostListeners bounds the sockets that are handed over in one message.
const mostListeners = 128

// takeOver returns the listeners of the relay that runs in dir, by name. There are none if no relay runs.
func takeOver(dir string) (map[string]*listener, error) {
	c, err := Dial(dir)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	line, err := json.Marshal(request{TakeOver: true})
	if err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("ask the relay before for its listeners: %w", err)
	}
	text, rights := make([]byte, 64<<10), make([]byte, syscall.CmsgSpace(4*mostListeners))
	n, oob, _, _, err := c.conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, fmt.Errorf("take over listeners: %w", err)
	}
	list, err := received(rights[:oob])
	if err != nil {
		return nil, err
	}
	var a answer
	err = json.Unmarshal(text[:n], &a)
	if err == nil && len(a.Listeners) != len(list) {
		err = fmt.Errorf("%d of %d came", len(list), len(a.Listeners))
	}
	if err != nil {
		for _, l := range list {
			l.close()
		}
		return nil, fmt.Errorf("take over listeners: %w", err)
	}
	named := make(map[string]*listener)
	for i, name := range a.Listeners {
		named[name] = list[i]
	}
	return named, nil
}

func received(oob []byte) (list []*listener, err error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("take over listeners: %w", err)
	}
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return list, fmt.Errorf("take over listeners: %w", err)
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			list = append(list, &listener{fd})
		}
	}
	return list, nil
}
